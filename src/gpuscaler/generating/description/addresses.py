"""Addresses from which an API server may be reached (``cluster.api_access``).

Sources, 2026-11-26: the EKS user guide, "Cluster API server endpoint"; AKS's page "Secure access to the API server using authorized IP
address ranges": both know public addresses only.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final

from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.kinds import as_is
from gpuscaler.settings.fields.table import Kind, ReadContext

ANYWHERE: Final = "0.0.0.0/0"
_PRIVATE: Final = tuple(ipaddress.IPv4Network(network) for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))


def _cidr(at: Cursor, _: ReadContext) -> str | None:
    given = at.entry.value
    try:
        network = ipaddress.IPv4Network(given if isinstance(given, str) and "/" in given else "")
    except ValueError:
        at.wrong("a range of IPv4 addresses such as 203.0.113.7/32, with no bit set beyond its length")
        return None
    if any(network.subnet_of(private) for private in _PRIVATE):
        at.wrong("the public addresses that the internet sees you with (`curl https://checkip.amazonaws.com` prints yours)")
    return str(network)


CIDR: Final = Kind("range of addresses", {"type": "string", "pattern": "^[0-9.]+/[0-9]{1,2}$"}, _cidr, as_is)


def before_creation(allowed: Sequence[str]) -> str:
    """Return what a person does before a cluster is created whose API server has a public endpoint, for the addresses ``allowed``."""
    if allowed:
        return f"be at one of the addresses that may reach the API server ({', '.join(allowed)}), here and in all later steps"
    return (
        "decide who may reach the API server: it is open to the whole internet, for those with credentials. To restrict it, name your "
        "addresses in `cluster.api_access` of the description, and generate the files again"
    )
