"""Resolves Services that settings name to their address through the API server, for clients that do not use the cluster's DNS.

The controller resolves names as its node does: in an empty cluster, CoreDNS itself waits for the machine that is yet to be bought.
"""

import re
from urllib.parse import urlsplit

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import SERVICES

#: ``NAME.NAMESPACE.svc``, with or without the domain of the cluster.
_NAMED = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc(\..+)?", re.ASCII)


class _Spec(msgspec.Struct, rename="camel"):
    cluster_ip: str = msgspec.field(name="clusterIP", default="")


class _Service(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


def service_in(url: str) -> tuple[str, str] | None:
    """Namespace and name of the Service that ``url`` points to; None for any other address, and for https.

    A certificate is valid for the name and not for the address, so a Service with https is resolved by DNS.
    """
    parts = urlsplit(url)
    match = _NAMED.fullmatch(parts.hostname or "") if parts.scheme == "http" else None
    return (match["namespace"], match["name"]) if match else None


async def with_cluster_ip(client: Client, url: str) -> str:
    """``url`` with a Service's ClusterIP in place of its name. Any other URL, and that of a Service without an address, is unchanged.

    Raises :class:`ApiError` or :class:`Unreachable`, :class:`NotFound` if there is no such Service.
    """
    named = service_in(url)
    if named is None:
        return url
    namespace, name = named
    address = msgspec.json.decode(await client.get(SERVICES, name, namespace=namespace), type=_Service).spec.cluster_ip
    if address in {"", "None"}:
        return url
    parts = urlsplit(url)
    host = f"[{address}]" if ":" in address else address
    return parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()
