"""Certificates of prometheus-adapter: the host name in them contains its namespace, and a certificate cannot be signed again here."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator

from gpuscaler.converting.adapters.placing import AdapterWorkload, ObjectSet
from gpuscaler.converting.adapters.references import config_references, key_of, namespace_of
from gpuscaler.converting.objects import Json, containers, ensure_mapping, get_mapping, text
from gpuscaler.model.certificates import certificate_problems

_FLAG = "--tls-cert-file"


def is_issued(name: str, adapter: AdapterWorkload, lot: ObjectSet) -> bool:
    """Whether cert-manager makes the Secret ``name``; if so, complete the namespace and the names of its Certificate."""
    certificates = lot.by_secret.get(name, [])
    for certificate in certificates:
        if not namespace_of(certificate) and adapter.is_known:
            lot.add_namespace(certificate, adapter.namespace, "where the pods that need its Secret run")
    here = [certificate for certificate in certificates if namespace_of(certificate) == adapter.namespace]
    for certificate in here:
        _check_issuer(certificate, lot)
        spec = ensure_mapping(certificate, "spec")
        names = listed if isinstance(listed := spec.get("dnsNames"), list) else []
        lacking = [host for host in adapter.hosts if host not in names]
        if lacking:
            spec["dnsNames"] = [*names, *lacking]
            lot.add_note(certificate, f"added the name {', '.join(lacking)}, which the API server uses")
    if certificates and not here:
        lot.refuse(
            adapter.workload,
            f"its pods need the Secret {name} in {adapter.namespace}; here {_titled(certificates[0])} makes it: write a Certificate "
            f"in {adapter.namespace}, too, for {' and '.join(adapter.hosts) or 'the name of its Service'}",
        )
    return bool(certificates)


def _titled(manifest: Json) -> str:
    kind, name = key_of(manifest)
    return f"{kind} {name} in {namespace_of(manifest) or 'no stated namespace'}"


def _check_issuer(certificate: Json, lot: ObjectSet) -> None:
    """Note an Issuer that is not where its Certificate is. It holds an authority, so it stays where it is."""
    reference = get_mapping(get_mapping(certificate, "spec"), "issuerRef")
    name, namespace = text(reference.get("name")), namespace_of(certificate)
    if text(reference.get("kind")) in ("", "Issuer") and lot.named("Issuer", name) and not lot.exists("Issuer", name, namespace):
        lot.refuse(
            certificate,
            f"its Issuer {name} has to be in {namespace}, too, and here it is {_titled(lot.named('Issuer', name)[0])}: write one there, "
            "or use a ClusterIssuer",
        )


def check_certificates(adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Note a served certificate that is not for the name that the API server uses."""
    instead = "or remove --tls-cert-file: gpuscaler metrics makes a certificate itself"
    mounted = {name for kind, name, _ in config_references(adapter.workload) if kind == "Secret"}
    secrets = [secret for name in sorted(mounted) for secret in lot.named("Secret", name) if namespace_of(secret) == adapter.namespace]
    is_issued_here = any(name in lot.by_secret for name in mounted)
    for key in certificate_keys(adapter.workload):
        certificates = [(secret, pem) for secret in secrets if (pem := _pem(secret, key))]
        for host in adapter.hosts:
            for served, pem in certificates:
                for mistake in certificate_problems(pem, host=host):
                    lot.add_note(served, f"{key}: {mistake}, {instead}")
            if not certificates and not is_issued_here:
                lot.add_note(
                    adapter.workload, f"make sure that the certificate {key} is for {host}, the name that the API server uses, {instead}"
                )


def certificate_keys(workload: Json) -> Iterator[str]:
    """The file names of served certificates, which are their keys in a Secret."""
    for container in containers(workload):
        words = [text(word) for key in ("command", "args") if isinstance(container.get(key), list) for word in container[key]]
        for word, following in zip(words, [*words[1:], ""], strict=False):
            flag, equals, value = word.partition("=")
            if flag == _FLAG and (path := value if equals else following):
                yield path.rpartition("/")[2]


def _pem(secret: Json, key: str) -> bytes:
    plain = get_mapping(secret, "stringData").get(key)
    if plain is not None:
        return text(plain).encode()
    try:
        return b64decode(text(get_mapping(secret, "data").get(key)))
    except (Base64Error, ValueError):
        return b""
