"""Finds problems of a server's certificate before its clients do.

kube-aggregator calls ``NAME.NAMESPACE.svc`` and ignores the common name; it accepts only the subject alternative names
(``k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go``; ``crypto/x509`` of Go).
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509

#: A certificate that ends within this time should have been replaced.
SOON = timedelta(days=14)


def certificate_problems(pem: bytes, *, host: str, now: float | None = None) -> tuple[str, ...]:
    """Problems of the first certificate in ``pem``, which should be for ``host``. With ``now`` (Unix time) its validity is checked, too."""
    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        names = _names(leaf)
    except (ValueError, IndexError):
        return ("saw no certificate, expected one in PEM",)
    problems: list[str] = []
    if now is not None:
        problems.extend(_times(leaf, datetime.fromtimestamp(now, UTC)))
    if not any(_is_for(name, host) for name in names):
        shown = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "") or "no name (a common name does not count)"
        problems.append(f"saw a certificate for {shown}, expected {host}, the name that the API server uses; reissue it for that name")
    return tuple(problems)


def _times(leaf: x509.Certificate, now: datetime) -> Iterable[str]:
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now > ends:
        yield f"it expired on {_day(ends)}: the API server does not trust it any more; renew it"
    elif now < begins:
        yield f"it is not valid until {_day(begins)}; check the clocks, or reissue it"
    elif ends - now < SOON:
        yield f"it expires on {_day(ends)}, in {max(0, (ends - now).days)} days; renew it"


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        alternative = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return alternative.get_values_for_type(x509.DNSName)


def _is_for(name: str, host: str) -> bool:
    """Whether a certificate's name covers ``host``. A star stands for the first part of a name only."""
    name, host = name.lower().removesuffix("."), host.lower()
    return name == host or (name.startswith("*.") and name[1:] == f".{host.partition('.')[2]}")
