"""The kubelet's ``v1.PodResourcesLister`` on the wire.

Descriptors are built here from a table of the few fields that are read, with the numbers of Kubernetes 1.35's
``podresources/v1/api.proto``; protobuf skips the others. Strings are declared as bytes, which are the same on the wire: one that is
no UTF-8 then spoils its entry and not the whole answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory  # type: ignore[import-untyped]  # it ships none

from gpuscaler.exporter.attribution.allocations import Allocation, Allocations, ClaimedDevice, PluginDevice
from gpuscaler.exporter.parts import Owner

LIST: Final = "/v1.PodResourcesLister/List"

#: message -> field -> (number, what it holds: one ``text``, many ``texts``, or many messages of a name)
_TABLE: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources")},
    "PodResources": {"name": (1, "text"), "namespace": (2, "text"), "containers": (3, "ContainerResources")},
    "ContainerResources": {"name": (1, "text"), "devices": (2, "ContainerDevices"), "dynamic_resources": (5, "DynamicResource")},
    "ContainerDevices": {"resource_name": (1, "text"), "device_ids": (2, "texts")},
    "DynamicResource": {"claim_resources": (4, "ClaimResource")},
    "ClaimResource": {"driver_name": (2, "text"), "pool_name": (3, "text"), "device_name": (4, "text")},
}


class NotListedError(Exception):
    """An answer to List that says nothing; the message tells why."""


class ListAnswers:
    """Reads the answers to List, one that is the same as the one before without looking at it again."""

    def __init__(self) -> None:
        self._type = _answer_type()
        self._last = b"", Allocations()

    def read(self, answer: bytes) -> Allocations:
        """What an answer says; an entry that cannot be understood is set aside. Raises :class:`NotListedError`."""
        if not answer or answer != self._last[0]:
            self._last = answer, self._read(answer)
        return self._last[1]

    def _read(self, answer: bytes) -> Allocations:
        try:
            pods = self._type.FromString(answer).pod_resources
        except message.DecodeError as error:
            raise NotListedError(f"answered {len(answer)} bytes that are no v1.ListPodResourcesResponse ({error})") from error
        if not pods:
            # Every pod is listed, also those without devices. Right after its start a kubelet knows of none, while they run on.
            raise NotListedError("lists no pod at all, as it does until it has read the pods of its node")
        found: list[Allocation] = []
        aside: list[str] = []
        for pod in pods:
            try:
                found += _of_pod(pod)
            except UnicodeDecodeError:
                aside.append(f"pod {_shown(pod.namespace)}/{_shown(pod.name)}: a name in its entry is no UTF-8")
        return Allocations(tuple(found), tuple(aside))


def _of_pod(pod: Any) -> Iterator[Allocation]:
    namespace, name = pod.namespace.decode(), pod.name.decode()
    for container in pod.containers:
        devices: tuple[PluginDevice | ClaimedDevice, ...]
        if devices := (*_of_plugins(container.devices), *_of_claims(container.dynamic_resources)):
            yield Allocation(Owner(namespace, name, container.name.decode()), devices)


def _of_plugins(entries: Iterable[Any]) -> Iterator[PluginDevice]:
    # Some kubelets list a device an entry, others one entry for each NUMA node.
    for entry in entries:
        resource = entry.resource_name.decode()
        yield from (PluginDevice(resource, one.decode()) for one in entry.device_ids)


def _of_claims(entries: Iterable[Any]) -> Iterator[ClaimedDevice]:
    for entry in entries:
        for one in entry.claim_resources:
            yield ClaimedDevice(one.driver_name.decode(), one.pool_name.decode(), one.device_name.decode())


def _shown(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _answer_type() -> Any:
    # A pool of its own: another library of the same process may bring the generated messages.
    file = descriptor_pb2.FileDescriptorProto(name="gpuscaler/podresources.proto", package="v1", syntax="proto3")
    for name, fields in _TABLE.items():
        built = file.message_type.add(name=name)
        for field, (number, holds) in fields.items():
            built.field.add(name=field, number=number, **_kind(holds))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


def _kind(holds: str) -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    if holds == "text":
        return {"type": kinds.TYPE_BYTES, "label": kinds.LABEL_OPTIONAL}
    if holds == "texts":
        return {"type": kinds.TYPE_BYTES, "label": kinds.LABEL_REPEATED}
    return {"type": kinds.TYPE_MESSAGE, "type_name": f".v1.{holds}", "label": kinds.LABEL_REPEATED}
