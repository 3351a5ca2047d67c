"""The registration of the metrics API in a cluster and its problems, for ``gpuscaler status``, without access to the server itself."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import PODS, SERVICES
from gpuscaler.kube.transport import Request
from gpuscaler.metrics.api.paths import VERSIONS
from gpuscaler.metrics.api.publishing import API_SERVICES
from gpuscaler.metrics.command.rights import excessive_autoscaler_rights, excessive_server_rights, has_right

#: Longest time for an answer, in seconds.
_PATIENCE = 10.0


class WireService(Struct):
    name: str = ""
    namespace: str = ""


class WireCondition(Struct):
    type: str = ""
    status: str = ""
    message: str = ""


class WireSpec(Struct):
    service: WireService | None = None
    group: str = ""
    version: str = ""
    insecure: bool = msgspec.field(default=False, name="insecureSkipTLSVerify")


class WireStatus(Struct):
    conditions: list[WireCondition] | None = None


class WireApiService(Struct):
    spec: WireSpec = msgspec.field(default_factory=WireSpec)
    status: WireStatus = msgspec.field(default_factory=WireStatus)


class WireContainer(Struct):
    args: list[str] | None = None


class WirePodSpec(Struct, rename="camel"):
    service_account_name: str = "default"
    containers: list[WireContainer] = []


class WirePod(Struct):
    spec: WirePodSpec = msgspec.field(default_factory=WirePodSpec)


class WireSelecting(Struct):
    selector: dict[str, str] | None = None


class WireTarget(Struct):
    spec: WireSelecting = msgspec.field(default_factory=WireSelecting)


_api_service = msgspec.json.Decoder(WireApiService).decode
_target = msgspec.json.Decoder(WireTarget).decode
_pod = msgspec.json.Decoder(WirePod).decode


class Registration(Struct, frozen=True):
    """A Service to which APIServices of metrics lead, their groups and versions, and descriptions of problems."""

    service: str
    apis: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{', '.join(self.apis)} by Service {self.service}: {'; '.join(self.problems) or 'no problems'}"


async def find_registrations(client: Client) -> tuple[Registration, ...]:
    """Each Service that serves metrics. What the user may not read is left out."""
    specs_by_service: dict[str, list[WireSpec]] = {}
    problems: dict[str, list[str]] = {}
    for name in (f"{version}.{group}" for group, versions in VERSIONS.items() for version in versions):
        try:
            api_service = _api_service(await client.get(API_SERVICES, name))
        except (ApiError, Unreachable, msgspec.MsgspecError):
            continue
        if api_service.spec.service is not None:
            service = f"{api_service.spec.service.namespace}/{api_service.spec.service.name}"
            specs_by_service.setdefault(service, []).append(api_service.spec)
            problems.setdefault(service, []).extend([*_problems(api_service), *await _aggregator_error(client, api_service)])
    for service, specs in specs_by_service.items():
        problems[service] += await _excessive_rights(client, service, sorted({spec.group for spec in specs}))
    return tuple(
        Registration(service, tuple(f"{spec.group}/{spec.version}" for spec in specs), tuple(dict.fromkeys(problems[service])))
        for service, specs in specs_by_service.items()
    )


def _problems(api_service: WireApiService) -> Iterator[str]:
    available = next((condition for condition in api_service.status.conditions or () if condition.type == "Available"), None)
    if available is not None and available.status != "True":
        yield f"it does not answer the API server: {' '.join(available.message.split()) or 'no reason given'}"
    if api_service.spec.insecure:
        yield "insecureSkipTLSVerify: the server is not authenticated; put the authority of its certificate in caBundle instead"


async def _aggregator_error(client: Client, api_service: WireApiService) -> list[str]:
    """The API server's error for a server that it does not trust, such as one whose certificate has expired or is for another name.

    The condition Available does not show this: it is checked without verifying the certificate (``available_controller.go`` of
    kube-aggregator).
    """
    if any(condition.type == "Available" and condition.status != "True" for condition in api_service.status.conditions or ()):
        return []
    try:
        async with client.exchange(
            Request("GET", f"/apis/{api_service.spec.group}/{api_service.spec.version}", timeout=_PATIENCE)
        ) as answer:
            async for _ in answer.pieces:
                pass
    except (ApiError, Unreachable) as error:
        status = error.status if isinstance(error, ApiError) else 503
        return [f"the API server gets no answer from it: {' '.join(str(error).split())}"] if status >= 500 else []
    return []


async def _excessive_rights(client: Client, service: str, groups: Sequence[str]) -> list[str]:
    """Rights that are too wide, of the accounts of our own server and of autoscalers; none if the user may not check."""
    rights = excessive_autoscaler_rights(groups)
    namespace, _, name = service.partition("/")
    try:
        selector = _target(await client.get(SERVICES, name, namespace=namespace)).spec.selector
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in (selector or {}).items())}
        pods = [_pod(body).spec for body in await client.list_all(PODS, namespace=namespace, query=query)] if selector else []
    except (ApiError, Unreachable, msgspec.MsgspecError):
        pods = []
    accounts = {
        pod_spec.service_account_name
        for pod_spec in pods
        if any((container.args or [""])[:1] == ["metrics"] for container in pod_spec.containers)
    }
    for account in sorted(accounts):
        rights += excessive_server_rights(f"system:serviceaccount:{namespace}:{account}")
    return [right.problem for right in rights if await has_right(client, right)]
