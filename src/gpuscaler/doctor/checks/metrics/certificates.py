"""Certificates between the API server and the programs that serve metrics.

The API server verifies them only when it forwards a request, and not when it decides whether an APIService is available
(``available_controller.go`` of kube-aggregator): a certificate that it does not trust shows nowhere but in failing requests. Certificates
come from the Secret that the program mounts, or from a connection to it, as documents of the kind :data:`PROBED_CERTIFICATE`:
``{metadata: {name}, address, pem, error}``, with the name of the APIService.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.metrics.programs import METRICS_GROUPS, RESOURCE, Serving, flag_of, mounted
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import Document, containers_of, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix, Unchecked
from gpuscaler.model.certificates import Certificate, read_certificates

PROBED_CERTIFICATE: Final = "probe/Certificate"
#: A certificate that ends within this many seconds is not renewed by anything, or that did not work.
_SOON: Final = 30 * 86400.0
_REFUSED = "the API server refuses the program, so that no metric can be read, while the APIService is shown as available"
_HIDDEN = "insecureSkipTLSVerify hides it; without that, the API server refuses the program"


@dataclass(frozen=True, slots=True)
class _Served:
    """A certificate that a program serves: where it was seen, its field, the chain, and the key and authority beside it.

    Of a connection only the first certificate is known, and the chain is not ``whole``.
    """

    owner: Document
    field: str
    chain: tuple[Certificate, ...]
    key: bytes = b""
    authority: bytes = b""
    is_whole: bool = True


def find_bad_certificates(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D44: no verification at all, another name than the API server uses, a certificate that ends soon, a key of another certificate."""
    serving = Serving(evidence)
    probes: dict[str, list[Document]] = {}
    for probe in evidence.of(PROBED_CERTIFICATE):
        probes.setdefault(probe.name, []).append(probe)
    seen: set[tuple[str, str]] = set()
    for api_service in evidence.of("APIService"):
        if api_service.text("spec", "group") not in METRICS_GROUPS or not api_service.has("spec", "service"):
            continue
        served = [*_mounted_certificates(api_service, serving, evidence), *_dialled(api_service, probes.get(api_service.name, []))]
        # Both versions of an API lead to one program, and a program is a workload with its pods: its certificate is reported once.
        by_place = {(item.owner.title, item.field): item for item in served}
        fresh = [item for place, item in by_place.items() if place not in seen]
        seen.update(by_place)
        yield from _skipped(api_service, served, evidence.now)
        yield from _bundle(api_service, served, evidence.now)
        for item in fresh:
            yield from _certificate(api_service, item, evidence.now)
        # metrics-server makes a certificate at each start, which its manifests tell the API server not to verify.
        is_usual = api_service.text("spec", "group") == RESOURCE and api_service.flag("spec", "insecureSkipTLSVerify")
        if not served and not is_usual:
            yield Unchecked("D44", f"the certificate behind {api_service.title}", _reason(evidence, probes.get(api_service.name, [])))


def _reason(evidence: Evidence, probes: list[Document]) -> str:
    reasons = [f"{kind} could not be read: {evidence.unread[kind]}" for kind in ("Service", "Secret") if kind in evidence.unread]
    reasons += [probe.text("error") for probe in probes if probe.text("error")]
    return "; ".join(reasons) or "its program mounts no Secret with it, and it was not called"


def _mounted_certificates(api_service: Document, serving: Serving, evidence: Evidence) -> Iterator[_Served]:
    service = serving.service_of(api_service)
    for workload in serving.behind(service) if service is not None else ():
        template = template_of(workload) or Document({})
        for _, container in containers_of(template):
            words = (*container.texts("command"), *container.texts("args"))
            file = flag_of(words, "tls-cert-file")
            for kind, name, key in mounted(workload, container, file) if file else ():
                secret = evidence.find("Secret", workload.namespace, name) if kind == "Secret" else None
                if secret is not None and (content := _content(secret, key)) is not None:
                    private = _content(secret, key.replace(".crt", ".key").replace("cert.pem", "key.pem"))
                    yield _Served(secret, f"data[{key}]", read_certificates(content), private or b"", _content(secret, "ca.crt") or b"")


def _dialled(api_service: Document, probes: list[Document]) -> Iterator[_Served]:
    for probe in probes:
        if probe.text("pem"):
            field = f"the certificate at {probe.text('address')}"
            yield _Served(api_service, field, read_certificates(probe.text("pem").encode()), is_whole=False)


def _content(secret: Document, key: str) -> bytes | None:
    """A value of a Secret; it is not printed anywhere."""
    plain = secret.value("stringData", key)
    if isinstance(plain, str):
        return plain.encode()
    encoded = secret.value("data", key)
    try:
        return b64decode(encoded) if isinstance(encoded, str) else None
    except (Base64Error, ValueError):
        return b""


def _skipped(api_service: Document, served: list[_Served], now: float) -> Iterator[Finding]:
    """No verification. It can be switched on at once where the authority of a good certificate is known."""
    if not api_service.flag("spec", "insecureSkipTLSVerify"):
        return
    # The manifests and the chart of metrics-server have it.
    severity = INFO if api_service.text("spec", "group") == RESOURCE else WARNING
    bundle = next((item for item in served if item.authority and _is_trusted(api_service, item, now)), None)
    if bundle is None:
        fix = Fix(advice="let cert-manager issue a certificate for the name of the program's Service, and put its authority in caBundle")
    else:
        encoded = bundle.owner.text("data", "ca.crt")
        fix = Fix((kubectl_patch(api_service, {"spec": {"insecureSkipTLSVerify": None, "caBundle": encoded}}),))
    yield Finding(
        "D44",
        severity,
        api_service.title,
        "spec.insecureSkipTLSVerify",
        "true",
        "caBundle with the authority of the program's certificate",
        "an attacker in the network between them can forge metrics, and so the number of replicas",
        fix,
        api_service.place,
    )


def _is_trusted(api_service: Document, served: _Served, now: float) -> bool:
    """Whether the API server would accept the certificate with the authority beside it."""
    leaf = served.chain[0] if served.chain else None
    authorities = read_certificates(served.authority)
    return (
        leaf is not None
        and leaf.begins <= now < leaf.ends
        and leaf.is_for(_host(api_service))
        and leaf.is_issued_by((*authorities, *served.chain[1:]))
        and bool(served.owner.text("data", "ca.crt"))
    )


def _bundle(api_service: Document, served: list[_Served], now: float) -> Iterator[Finding]:
    """The authorities that the API server trusts for this program."""
    encoded = api_service.text("spec", "caBundle")
    if not encoded or api_service.flag("spec", "insecureSkipTLSVerify"):
        return
    try:
        authorities = read_certificates(b64decode(encoded))
    except (Base64Error, ValueError):
        authorities = ()
    advice = "put the authority of the program's certificate there, as base64 of PEM"
    mistake = ""
    if not authorities:
        mistake = "no certificate that can be read"
    elif all(authority.ends < now for authority in authorities):
        mistake = f"authorities that all expired, the last on {max(authorities, key=lambda item: item.ends).text_of_end}"
    elif (known := [item for item in served if item.is_whole and item.chain]) and not any(_is_issued(item, authorities) for item in known):
        mistake = "authorities that did not issue the certificate of the program"
    if mistake:
        commands = tuple(
            kubectl_patch(api_service, {"spec": {"caBundle": item.owner.text("data", "ca.crt")}})
            for item in served[:1]
            if _is_trusted(api_service, item, now)
        )
        fix = Fix(commands, "" if commands else advice)
        yield _finding(api_service, "spec.caBundle", severity=CRITICAL, seen=mistake, expected="its authority", effect=_REFUSED, fix=fix)
    elif (ends := max(authority.ends for authority in authorities)) - now < _SOON:
        last = next(authority for authority in authorities if authority.ends == ends)
        seen = f"authorities until {last.text_of_end}, in {int(ends - now) // 86400} days"
        fix = Fix(advice="renew the authority, and the certificates that it issued")
        yield _finding(
            api_service, "spec.caBundle", severity=WARNING, seen=seen, expected="30 days or more", effect=f"then {_REFUSED}", fix=fix
        )


def _is_issued(served: _Served, authorities: tuple[Certificate, ...]) -> bool:
    return served.chain[0].is_issued_by((*authorities, *served.chain[1:]))


def _certificate(api_service: Document, served: _Served, now: float) -> Iterator[Finding]:
    """The certificate itself."""
    skips = api_service.flag("spec", "insecureSkipTLSVerify")
    severity, effect = (WARNING, _HIDDEN) if skips else (CRITICAL, _REFUSED)
    owner, field, host = served.owner, served.field, _host(api_service)
    reissue = Fix(
        advice=f"issue the certificate again for {host}, and restart the program; cert-manager and gpuscaler metrics renew theirs"
    )
    if not served.chain:
        expected = "a certificate as PEM in base64"
        yield _finding(
            owner, field, severity=severity, seen="no certificate that can be read", expected=expected, effect=effect, fix=reissue
        )
        return
    leaf = served.chain[0]
    if not leaf.is_for(host):
        seen, expected = f"a certificate for {leaf.text_of_names}", f"{host}, the name that the API server uses"
        yield _finding(owner, field, severity=severity, seen=seen, expected=expected, effect=effect, fix=reissue)
    if leaf.ends <= now or leaf.begins > now:
        seen = f"expired on {leaf.text_of_end}" if leaf.ends <= now else "not valid yet"
        yield _finding(owner, field, severity=severity, seen=seen, expected="a valid certificate", effect=effect, fix=reissue)
    elif leaf.ends - now < _SOON:
        seen = f"it expires on {leaf.text_of_end}, in {int(leaf.ends - now) // 86400} days"
        yield _finding(owner, field, severity=WARNING, seen=seen, expected="30 days or more", effect=f"then {effect}", fix=reissue)
    if served.key and leaf.has_key(served.key) is False:
        seen, expected = "a certificate of another key than the Secret has", "a certificate and its key"
        yield _finding(owner, field, severity=CRITICAL, seen=seen, expected=expected, effect="the program does not start", fix=reissue)


def _host(api_service: Document) -> str:
    return f"{api_service.text('spec', 'service', 'name')}.{api_service.text('spec', 'service', 'namespace')}.svc"


def _finding(document: Document, field: str, *, severity: str, seen: str, expected: str, effect: str, fix: Fix) -> Finding:
    return Finding("D44", severity, document.title, field, seen, expected, effect, fix, document.place)


CHECKS = (Check("D44", "certificates of programs that serve metrics", ("APIService",), find_bad_certificates, on_files=True),)
