"""The file in which the kubelet's device manager keeps what it allocated, for when the kubelet itself cannot be asked.

All its shapes are read: ``DeviceIDs`` is a list up to Kubernetes 1.19 and since then a list for each NUMA node; the entries lie in
``Data``, beside a ``Checksum``, since 1.11 and at the top before. The checksum is over Go's own way of printing and is not looked at: a
file that was written by half is no JSON. DRA claims are not in it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gpuscaler.exporter.attribution.allocations import Allocation, Allocations, PluginDevice
from gpuscaler.exporter.parts import Owner

#: A file that is larger is none of the kubelet's: a thousand devices are 200 kB.
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
    """What the file says; owners have the UID of their pod in place of its names. Raises :class:`CheckpointError`."""
    try:
        if path.stat().st_size > _MOST:
            raise CheckpointError(f"{path} is larger than {_MOST} bytes, and so no checkpoint of a kubelet")
        file = _read_file(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"no kubelet checkpoint at {path} ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is no checkpoint of a kubelet: {error}") from error
    found: list[Allocation] = []
    aside: list[str] = []
    for raw in (file.data.entries if file.data else file.entries) or ():
        try:
            entry = _read_entry(raw)
        except msgspec.DecodeError as error:
            aside.append(f"an entry of {path}: {error}")
            continue
        if devices := tuple(PluginDevice(entry.resource, one) for one in _ids(entry)):
            found.append(Allocation(Owner("", "", entry.container, entry.pod), devices))
    return Allocations(tuple(found), tuple(aside))


def _ids(entry: _Entry) -> Iterator[str]:
    if isinstance(entry.ids, dict):
        for ids in entry.ids.values():
            yield from ids or ()
    else:
        yield from entry.ids or ()
