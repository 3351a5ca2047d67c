"""The last check of a node before its machine is ended: it reads from the API server, since a watch may have stalled silently."""

from collections.abc import Set

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS

_FINISHED = frozenset({"Succeeded", "Failed"})


class WireMetadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class WireStatus(msgspec.Struct):
    phase: str = ""


class WirePod(msgspec.Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    status: WireStatus = msgspec.field(default_factory=WireStatus)


async def describe_unseen_pod(client: Client, node: str, known_uids: Set[str]) -> str:
    """A sentence about a pod that is bound to ``node`` and has a uid outside ``known_uids``; empty if there is none.

    Raises the errors of reading. A stalled watch is detected only after 90 s, and an idle machine may be ended sooner.
    """
    for data in await client.list_all(PODS, query={"fieldSelector": f"spec.nodeName={node}"}):
        pod = msgspec.json.decode(data, type=WirePod)
        if pod.status.phase not in _FINISHED and pod.metadata.uid not in known_uids:
            return f"pod {pod.metadata.namespace}/{pod.metadata.name} is bound to the node, but the watch has not shown the pod yet"
    return ""
