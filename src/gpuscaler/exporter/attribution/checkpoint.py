"""Reads the file in which the kubelet's device manager saves its allocations, for when the kubelet itself does not answer.

All formats are supported: ``DeviceIDs`` is a list up to Kubernetes 1.19 and since then a list for each NUMA node; the entries are in
``Data``, beside a ``Checksum``, since 1.11 and at the top level before. The checksum covers Go's own print format and is not checked: a
file that was only half written is not valid JSON. The file does not contain DRA claims.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gpuscaler.exporter.attribution.allocations import Allocation, Allocations, PluginDevice
from gpuscaler.exporter.parts import Owner

#: A larger file is not from a kubelet: a thousand devices take 200 kB.
_MOST: Final = 32 * 2**20


class CheckpointError(Exception):
    """The checkpoint cannot be used; the message is a sentence for people."""


class _Entry(msgspec.Struct, rename={"pod": "PodUID", "container": "ContainerName", "resource": "ResourceName", "ids": "DeviceIDs"}):
    pod: str = ""
    container: str = ""
    resource: str = ""
    ids: dict[str, list[str] | None] | list[str] | None = None


class _Data(msgspec.Struct, rename={"entries": "PodDeviceEntries"}):
    entries: list[msgspec.Raw] | None = None


class _File(msgspec.Struct, rename={"data": "Data", "entries": "PodDeviceEntries"}):
    data: _Data | None = None
    entries: list[msgspec.Raw] | None = None


_read_file: Final = msgspec.json.Decoder(_File).decode
_read_entry: Final = msgspec.json.Decoder(_Entry).decode


def read_checkpoint(path: Path) -> Allocations:
    """Read the allocations in the file; owners have the UID of their pod instead of its names. Raises :class:`CheckpointError`."""
    try:
        if path.stat().st_size > _MOST:
            raise CheckpointError(f"{path} is larger than {_MOST} bytes, so it is not a kubelet checkpoint")
        file = _read_file(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"no kubelet checkpoint at {path} ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is not a kubelet checkpoint: {error}") from error
    allocations: list[Allocation] = []
    aside: list[str] = []
    for raw in (file.data.entries if file.data else file.entries) or ():
        try:
            entry = _read_entry(raw)
        except msgspec.DecodeError as error:
            aside.append(f"skipped an entry of {path}: {error}")
            continue
        if devices := tuple(PluginDevice(entry.resource, device_id) for device_id in _ids(entry)):
            allocations.append(Allocation(Owner("", "", entry.container, entry.pod), devices))
    return Allocations(tuple(allocations), tuple(aside))


def _ids(entry: _Entry) -> Iterator[str]:
    if isinstance(entry.ids, dict):
        for ids in entry.ids.values():
            yield from ids or ()
    else:
        yield from entry.ids or ()
