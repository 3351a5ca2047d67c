"""The end of machines: the last check of their nodes, and the calls to the cloud.

The check reads from the API server, since a watch may have stalled silently.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from gpuscaler.clouds.protocol import THROTTLED, CloudError, LostAnswerError, Provider
from gpuscaler.control.loop.failing import CALL_SECONDS, STOPPING, describe_call_error, describe_unexpected_error
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import PODS

_LOG = structlog.get_logger(__name__)
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


class EndCall(Struct, frozen=True):
    """A machine to end, unless ``check``, called right before, returns a sentence about a pod on its ``node``."""

    instance: str
    node: str
    check: Callable[[], Coroutine[Any, Any, str]] | None = None


class EndResult(Struct, frozen=True, gc=False):
    """The result of ending a machine; ``detail`` is empty if it is ending or gone. ``held`` is set if pods were found on it.

    ``wait`` is set if nothing but the moment was refused: in as many seconds the cloud takes the next call.
    """

    instance: str
    node: str
    detail: str = ""
    held: bool = False
    wait: float = 0.0


async def describe_unseen_pod(client: Client, node: str, known_uids: Set[str]) -> str:
    """A sentence about a pod that is bound to ``node`` and has a uid outside ``known_uids``; empty if there is none.

    Raises the errors of reading. A stalled watch is detected only after 90 s, and an idle machine may be ended sooner.
    """
    for data in await client.list_all(PODS, query={"fieldSelector": f"spec.nodeName={node}"}):
        pod = msgspec.json.decode(data, type=WirePod)
        if pod.status.phase not in _FINISHED and pod.metadata.uid not in known_uids:
            return f"pod {pod.metadata.namespace}/{pod.metadata.name} is bound to the node, but the watch has not shown the pod yet"
    return ""


async def end_machines(
    provider: Provider, calls: Sequence[EndCall], *, fence: Callable[[float], None], keep: Callable[[EndResult], None]
) -> None:
    """End machines and ``keep`` the results. All are checked first, so that clouds that end many machines in one call get them at once.

    ``fence`` is called right before each end with the seconds that it may take, and raises to stop it.
    """
    objections = await asyncio.gather(*map(_objection, calls))
    for objection in filter(None, objections):
        keep(objection)
    agreed = [call for call, objection in zip(calls, objections, strict=True) if objection is None]

    async def end(call: EndCall) -> None:
        keep(await _end(provider, call, fence))

    for failure in await asyncio.gather(*map(end, agreed), return_exceptions=True):
        if failure is not None:
            raise failure


async def _objection(call: EndCall) -> EndResult | None:
    """Why a machine is not ended now, None if nothing is known against it."""
    if call.check is None:
        return None
    try:
        async with asyncio.timeout(CALL_SECONDS):
            pod = await call.check()
    except (TimeoutError, ApiError, Unreachable) as error:
        return EndResult(call.instance, call.node, describe_call_error(error))
    except STOPPING:
        raise
    except Exception as error:  # noqa: BLE001  # no content of the cluster may end the loop
        _LOG.exception("a node could not be checked before its machine's end", node=call.node)
        return EndResult(call.instance, call.node, describe_unexpected_error(error))
    return EndResult(call.instance, call.node, pod, held=True) if pod else None


async def _end(provider: Provider, call: EndCall, fence: Callable[[float], None]) -> EndResult:
    detail, wait = "", 0.0
    try:
        fence(CALL_SECONDS)
        async with asyncio.timeout(CALL_SECONDS):
            refusal = (await provider.remove((call.instance,))).get(call.instance)
        if refusal is not None:
            detail, wait = refusal.detail or refusal.cause, refusal.retry_after if refusal.cause == THROTTLED else 0.0
    except CloudError as error:
        detail, wait = error.detail, error.retry_after if error.cause == THROTTLED else 0.0
    except (LostAnswerError, TimeoutError, ApiError, Unreachable) as error:
        detail = describe_call_error(error)
    except STOPPING:
        raise
    except Exception as error:  # noqa: BLE001  # no answer of a cloud may end the loop
        _LOG.exception("a machine could not be ended", machine=call.instance)
        detail = describe_unexpected_error(error)
    return EndResult(call.instance, call.node, detail, wait=wait)
