"""APIServices as they are stored, and the addresses of their servers.

Source: ``k8s.io/kube-aggregator/pkg/controllers/status/remote/remote_available_controller.go`` (the words), Kubernetes 1.35, where a
controller makes EndpointSlices of Endpoints; here Endpoints are read. The cluster has no network of its own: an endpoint is an address that
this machine reaches.
"""

from typing import Final

import msgspec
from msgspec import Struct

from gpuscaler.embedded.apiserver.kinds import API_SERVICES, ENDPOINTS, SERVICES
from gpuscaler.embedded.apiserver.store import Store, Stored, key_of


class UnavailableError(Exception):
    """An API has no reachable server: ``reason`` is the CamelCase reason, the text is the message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WireReference(Struct):
    name: str = ""
    namespace: str = ""
    port: int = 443


class WireSpec(Struct, rename="camel"):
    group: str = ""
    version: str = ""
    service: WireReference | None = None
    ca_bundle: str | None = None
    insecure: bool = msgspec.field(default=False, name="insecureSkipTLSVerify")
    group_priority_minimum: int = 0
    version_priority: int = 0


class WireCondition(Struct):
    type: str = ""
    status: str = ""


class WireStatus(Struct):
    conditions: list[WireCondition] | None = None


class WireApiService(Struct):
    spec: WireSpec
    status: WireStatus | None = None

    @property
    def available(self) -> bool:
        conditions = (self.status.conditions if self.status else None) or ()
        return any((condition.type, condition.status) == ("Available", "True") for condition in conditions)

    @property
    def host(self) -> str:
        """The name that its server's certificate must have."""
        service = self.spec.service or WireReference()
        return f"{service.name}.{service.namespace}.svc"


class WirePort(Struct):
    port: int = 0
    name: str = ""


class WireServiceSpec(Struct, rename="camel"):
    type: str = ""
    external_name: str = ""
    ports: list[WirePort] | None = None


class WireService(Struct):
    spec: WireServiceSpec = msgspec.field(default_factory=WireServiceSpec)


class WireAddress(Struct):
    ip: str = ""


class WireSubset(Struct):
    addresses: list[WireAddress] | None = None
    ports: list[WirePort] | None = None


class WireEndpoints(Struct):
    subsets: list[WireSubset] | None = None


_api_service: Final = msgspec.json.Decoder(WireApiService).decode
_service: Final = msgspec.json.Decoder(WireService).decode
_endpoints: Final = msgspec.json.Decoder(WireEndpoints).decode


def read(stored: Stored) -> WireApiService | None:
    """The APIService, or None if it cannot be parsed."""
    try:
        return _api_service(stored.body)
    except msgspec.MsgspecError:
        return None


def list_api_services(store: Store) -> list[tuple[str, WireApiService]]:
    """All APIServices that can be parsed, with their names; those that clients should prefer come first."""
    decoded = ((stored.key, read(stored)) for stored in store[API_SERVICES].within(""))
    readable = [(name, api_service) for name, api_service in decoded if api_service is not None]
    return sorted(readable, key=lambda item: (-item[1].spec.group_priority_minimum, item[1].spec.group, -item[1].spec.version_priority))


def find_endpoint(store: Store, reference: WireReference) -> tuple[str, int]:
    """Address and port of the server behind a Service. Raises :class:`UnavailableError`."""
    what = f'service/{reference.name} in "{reference.namespace}"'
    try:
        stored = store.get(SERVICES, key_of(reference.namespace, reference.name))
        if stored is None:
            raise UnavailableError("ServiceNotFound", f"{what} is not present")
        service = _service(stored.body).spec
        port = next((port for port in service.ports or () if port.port == reference.port), None)
        if port is None and service.type != "ExternalName":
            raise UnavailableError("ServicePortError", f"{what} is not listening on port {reference.port}")
        if port is None or service.type == "ExternalName":
            return service.external_name, reference.port
        kept = store.get(ENDPOINTS, key_of(reference.namespace, reference.name))
        if kept is None:
            raise UnavailableError("EndpointsNotFound", f"cannot find endpointslices for {what}")
        subsets = _endpoints(kept.body).subsets or ()
    except msgspec.MsgspecError as error:
        raise UnavailableError("ServiceNotFound", f"{what} cannot be read: {error}") from error
    for subset in subsets:
        number = next((subset_port.port for subset_port in subset.ports or () if subset_port.name == port.name), 0)
        for address in subset.addresses or () if number else ():
            return address.ip, number
    raise UnavailableError("MissingEndpoints", f'endpointslices for {what} have no addresses with port name "{port.name}"')
