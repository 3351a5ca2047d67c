"""The wire format of the kubelet's ``v1.PodResourcesLister``.

Of Kubernetes 1.35's ``podresources/v1/api.proto``, this reads names, devices and claims, and skips the rest. All of these are strings and
messages, which have one form on the wire (protobuf's ``LEN``), so they are decoded here: the protobuf library takes 3 MB on every node with
GPUs, and rejects a whole answer because of one name that is not UTF-8.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.exporter.attribution.allocations import Allocation, Allocations, ClaimedDevice, PluginDevice
from gpuscaler.exporter.parts import Owner

LIST: Final = "/v1.PodResourcesLister/List"


class NotListedError(Exception):
    """An answer to List that cannot be used; the message says why."""


class WireError(ValueError):
    """Bytes that are not a protobuf message."""


class ListAnswers:
    """Reads the answers to List; one that equals the previous answer is not decoded again."""

    def __init__(self) -> None:
        self._last = b"", Allocations()

    def read(self, answer: bytes) -> Allocations:
        """Decode an answer; an entry that cannot be parsed is skipped. Raises :class:`NotListedError`."""
        if not answer or answer != self._last[0]:
            self._last = answer, _read(answer)
        return self._last[1]


def _read(answer: bytes) -> Allocations:
    try:
        # message ListPodResourcesResponse { repeated PodResources pod_resources = 1; }
        pods = _each(1, _fields(answer))
    except WireError as error:
        raise NotListedError(f"answered {len(answer)} bytes that are not a v1.ListPodResourcesResponse ({error})") from error
    if not pods:
        # Every pod is listed, also those without devices. Right after its start a kubelet knows no pods, although they still run.
        raise NotListedError("lists no pods; a kubelet that has just started does so until it has read the pods of its node")
    allocations: list[Allocation] = []
    aside: list[str] = []
    for number, pod in enumerate(pods, 1):
        try:
            allocations += _of_pod(pod)
        except ValueError as error:
            aside.append(f"skipped pod {number} of the {len(pods)} that the kubelet lists: {error}")
    return Allocations(tuple(allocations), tuple(aside))


def _of_pod(raw: bytes) -> list[Allocation]:
    # message PodResources { string name = 1; string namespace = 2; repeated ContainerResources containers = 3; }
    pod = _fields(raw)
    namespace, name = _text(2, pod), _text(1, pod)
    allocations = []
    for raw_container in _each(3, pod):
        # message ContainerResources { string name = 1; repeated ContainerDevices devices = 2; repeated DynamicResource ... = 5; }
        container = _fields(raw_container)
        devices = (*_of_plugins(_each(2, container)), *_of_claims(_each(5, container)))
        if devices:
            allocations.append(Allocation(Owner(namespace, name, _text(1, container)), devices))
    return allocations


def _of_plugins(entries: Iterable[bytes]) -> Iterator[PluginDevice | ClaimedDevice]:
    # Some kubelets list one entry for each device, others one for each NUMA node.
    for raw_entry in entries:
        # message ContainerDevices { string resource_name = 1; repeated string device_ids = 2; }
        entry = _fields(raw_entry)
        resource = _text(1, entry)
        yield from (PluginDevice(resource, device_id.decode()) for device_id in _each(2, entry))


def _of_claims(entries: Iterable[bytes]) -> Iterator[PluginDevice | ClaimedDevice]:
    for raw_entry in entries:
        # message DynamicResource { repeated ClaimResource claim_resources = 4; }
        for raw_claim in _each(4, _fields(raw_entry)):
            # message ClaimResource { string driver_name = 2; string pool_name = 3; string device_name = 4; }
            claim = _fields(raw_claim)
            yield ClaimedDevice(_text(2, claim), _text(3, claim), _text(4, claim))


def _each(number: int, fields: list[tuple[int, bytes]]) -> list[bytes]:
    return [body for field_number, body in fields if field_number == number]


def _text(number: int, fields: list[tuple[int, bytes]]) -> str:
    """The text of a field. As in protobuf, the last one counts, and a missing field is empty."""
    return next((body.decode() for field_number, body in reversed(fields) if field_number == number), "")


def _fields(raw: bytes) -> list[tuple[int, bytes]]:
    """The texts and messages of a message by field number, in order; numbers are skipped. Raises :class:`WireError`."""
    fields = []
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == 2:
            size, start = _varint(raw, at)
            at = start + size
            fields.append((tag >> 3, raw[start:at]))
        elif kind == 0:
            _, at = _varint(raw, at)
        elif kind in {1, 5}:
            at += 8 if kind == 1 else 4
        else:
            raise WireError(f"saw wire type {kind}, expected 0, 1, 2 or 5")
    if at > len(raw):
        raise WireError(f"the message ends {at - len(raw)} bytes too early")
    return fields


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number encoded with seven bits per byte, lowest first, and the position after it."""
    value = shift = 0
    while shift < 70:
        if at >= len(raw):
            raise WireError("the message ends in the middle of a number")
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError("a number has more than ten bytes")
