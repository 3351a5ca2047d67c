"""Faults of the nodes of a simulated account, for its control path: device plugins, resources that never appear, kubelets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from gpuscaler.embedded.nodes.devices import Devices
from gpuscaler.embedded.nodes.kubelets import Kubelets


class Request(Protocol):
    """A request to a cloud's control path."""

    @property
    def method(self) -> str: ...

    @property
    def body(self) -> bytes: ...


class Restart(Struct, frozen=True, forbid_unknown_fields=True):
    """Device plugins of ``node`` are away for ``seconds``; "" stands for every node, and for every plugin."""

    seconds: float = 45.0
    node: str = ""
    plugin: str = ""


class Hidden(Struct, frozen=True, forbid_unknown_fields=True):
    """No machine of ``instance_type`` shows ``resource``; "" stands for all."""

    resource: str = ""
    instance_type: str = ""


class Stopped(Struct, frozen=True, forbid_unknown_fields=True):
    """The kubelet of ``node`` stops."""

    node: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of an account: their devices, and their kubelets."""

    devices: Devices
    kubelets: Kubelets


def _plugins(nodes: Nodes, request: Request) -> Any:
    if request.method == "PUT":
        restart = msgspec.json.decode(request.body, type=Restart)
        nodes.devices.restart(restart.node, seconds=restart.seconds, plugin=restart.plugin)
    return {}


def _absent(nodes: Nodes, request: Request) -> Any:
    if request.method == "PUT":
        hidden = msgspec.json.decode(request.body, type=Hidden)
        nodes.devices.hide(hidden.resource, hidden.instance_type)
    elif request.method == "DELETE":
        nodes.devices.unhide()
    return [{"resource": absent.resource, "instance_type": absent.instance_type} for absent in nodes.devices.hidden]


def _kubelets(nodes: Nodes, request: Request) -> Any:
    if request.method == "PUT":
        nodes.kubelets.stop(msgspec.json.decode(request.body, type=Stopped).node)
    elif request.method == "DELETE":
        for node in tuple(nodes.kubelets.stopped):
            nodes.kubelets.resume(node)
    return sorted(nodes.kubelets.stopped)


ACTS: Final[Mapping[str, Callable[[Nodes, Request], Any]]] = {"plugins": _plugins, "absent": _absent, "kubelets": _kubelets}
