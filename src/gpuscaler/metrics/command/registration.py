"""The registration of the metrics API in a cluster and its problems, for ``gpuscaler status``, without access to the server itself."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import PODS, SERVICES
from gpuscaler.metrics.api.paths import VERSIONS
from gpuscaler.metrics.api.publishing import API_SERVICES
from gpuscaler.metrics.command.rights import excessive_autoscaler_rights, excessive_server_rights, has_right

#: Longest time for an answer, in seconds.
_PATIENCE = 10.0
_API_PATH = re.compile(r"/apis/[a-z0-9.]+/v\w+")


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


class WireResource(Struct):
    name: str = ""


class WireResourceList(Struct):
    resources: list[WireResource] | None = None


_api_service = msgspec.json.Decoder(WireApiService).decode
_resource_list = msgspec.json.Decoder(WireResourceList).decode
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
    services: dict[str, list[WireApiService]] = {}
    for name in (f"{version}.{group}" for group, versions in VERSIONS.items() for version in versions):
        try:
            api_service = _api_service(await client.get(API_SERVICES, name))
        except (ApiError, Unreachable, msgspec.MsgspecError):
            continue
        if api_service.spec.service is not None:
            service = f"{api_service.spec.service.namespace}/{api_service.spec.service.name}"
            services.setdefault(service, []).append(api_service)
    return tuple([await _registration(client, service, api_services) for service, api_services in services.items()])


async def _registration(client: Client, service: str, api_services: Sequence[WireApiService]) -> Registration:
    specs = [api_service.spec for api_service in api_services]
    problems = [problem for api_service in api_services for problem in _problems(api_service)]
    # The server that does not answer for one API does not answer for the others; their conditions may be half a minute old.
    if all(_is_available(api_service) for api_service in api_services):
        problems += [problem for spec in specs for problem in await _failures(client, spec)]
    problems += await _excessive_rights(client, service, sorted({spec.group for spec in specs}))
    # The same problem for several APIs differs only in their paths.
    distinct = {_API_PATH.sub("", problem): problem for problem in reversed(problems)}
    return Registration(service, tuple(f"{spec.group}/{spec.version}" for spec in specs), tuple(reversed(distinct.values())))


def _is_available(api_service: WireApiService) -> bool:
    return not any(condition.type == "Available" and condition.status != "True" for condition in api_service.status.conditions or ())


def _problems(api_service: WireApiService) -> Iterator[str]:
    available = next((condition for condition in api_service.status.conditions or () if condition.type == "Available"), None)
    if available is not None and available.status != "True":
        yield f"it does not answer the API server: {' '.join(available.message.split()) or 'no reason given'}"
    if api_service.spec.insecure:
        yield "insecureSkipTLSVerify: the server is not authenticated; put the authority of its certificate in caBundle instead"


async def _failures(client: Client, spec: WireSpec) -> list[str]:
    """What the API server reports about requests to a server that is available.

    It may not trust the server, whose certificate has expired or is for another name: the condition Available is checked without verifying
    the certificate (``available_controller.go`` of kube-aggregator). The server may have no values, because Prometheus is down.
    """
    path, client = f"/apis/{spec.group}/{spec.version}", replace(client, read_timeout=_PATIENCE)
    try:
        names = [resource.name for resource in _resource_list(await client.get_once(path)).resources or ()]
    except (ApiError, Unreachable) as error:
        return [f"the API server gets no answer from it: {_one_line(error)}"] if _is_failure(error) else []
    except msgspec.MsgspecError:
        return []
    # A metric of a namespace that always exists. Without a metric in the list, nothing can be requested.
    metric = next((metric for resource, _, metric in (name.partition("/") for name in names) if resource == "namespaces"), "")
    if not metric or "/" in metric:
        return []
    try:
        await client.get_once(f"{path}/namespaces/default/metrics/{quote(metric, safe=':')}")
    except (ApiError, Unreachable) as error:
        return [f"it has no values: {_one_line(error)}"] if _is_failure(error) else []
    return []


def _is_failure(error: ApiError | Unreachable) -> bool:
    """Whether the server failed; it may also refuse this user, or have no such metric."""
    return not isinstance(error, ApiError) or error.status >= 500


def _one_line(error: ApiError | Unreachable) -> str:
    return " ".join(str(error).split())


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
