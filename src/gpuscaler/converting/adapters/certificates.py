"""Certificates of prometheus-adapter: the host name in them contains its namespace, and a certificate cannot be signed again here."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator

from gpuscaler.converting.adapters.moving import AdapterWorkload, ObjectSet
from gpuscaler.converting.adapters.references import config_references, key_of, namespace_of
from gpuscaler.converting.objects import Json, containers, ensure_mapping, get_mapping, text
from gpuscaler.model.certificates import certificate_problems

_FLAG = "--tls-cert-file"
_INJECTED = "cert-manager.io/inject-ca-from"


def is_issued(name: str, adapter: AdapterWorkload, lot: ObjectSet) -> bool:
    """Whether cert-manager makes the Secret ``name``; if so, correct the namespace and the names of its Certificate."""
    certificates = [
        certificate
        for certificate in lot.objects
        if certificate.get("kind") == "Certificate" and text(get_mapping(certificate, "spec").get("secretName")) == name
    ]
    for certificate in certificates:
        before = namespace_of(certificate)
        if before != adapter.namespace:
            lot.move(certificate, adapter.namespace, "where the pods that need its Secret run")
            _move_issuer(certificate, before, adapter, lot)
            _follow(certificate, before, lot)
        spec = ensure_mapping(certificate, "spec")
        names = listed if isinstance(listed := spec.get("dnsNames"), list) else []
        lacking = [host for host in adapter.hosts if host not in names]
        if lacking:
            spec["dnsNames"] = [*names, *lacking]
            lot.add_note(certificate, f"added the name {', '.join(lacking)}, which the API server uses")
    return bool(certificates)


def _move_issuer(certificate: Json, before: str, adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Move the Issuer of a Certificate with it, and the Secret of the Issuer."""
    reference = get_mapping(get_mapping(certificate, "spec"), "issuerRef")
    name = text(reference.get("name"))
    if text(reference.get("kind")) not in ("", "Issuer") or not name or lot.exists("Issuer", name, adapter.namespace):
        return
    issuers = [item for item in lot.named("Issuer", name) if namespace_of(item) == before]
    is_shared = any(
        item.get("kind") == "Certificate"
        and namespace_of(item) == before
        and text(get_mapping(get_mapping(item, "spec"), "issuerRef").get("name")) == name
        for item in lot.objects
    )
    if not issuers or is_shared:
        lot.add_note(certificate, f"its Issuer {name} has to be in {adapter.namespace}, too: copy it, or use a ClusterIssuer")
        return
    lot.move(issuers[0], adapter.namespace, "where its Certificate is")
    authority = text(get_mapping(get_mapping(issuers[0], "spec"), "ca").get("secretName"))
    for secret in lot.named("Secret", authority) if authority else ():
        if namespace_of(secret) == before and lot.is_only_of(adapter, secret):
            lot.move(secret, adapter.namespace, "where its Issuer is")


def _follow(certificate: Json, before: str, lot: ObjectSet) -> None:
    """Let cert-manager inject the authority of a Certificate from where it moved to."""
    name, namespace = key_of(certificate)[1], namespace_of(certificate)
    for item in lot.objects if before else ():
        annotations = get_mapping(get_mapping(item, "metadata"), "annotations")
        if annotations.get(_INJECTED) == f"{before}/{name}":
            annotations[_INJECTED] = f"{namespace}/{name}"
            lot.add_note(item, f"annotation {_INJECTED}: {before}/{name} became {namespace}/{name}")


def check_certificates(adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Note a served certificate that is not for the name that the API server uses."""
    instead = "or remove --tls-cert-file: gpuscaler metrics makes a certificate itself"
    mounted = {name for kind, name, _ in config_references(adapter.workload) if kind == "Secret"}
    secrets = [manifest for manifest in lot.objects if manifest.get("kind") == "Secret" and key_of(manifest)[1] in mounted]
    for key in certificate_keys(adapter.workload):
        certificates = [(secret, pem) for secret in secrets if (pem := _pem(secret, key))]
        for host in adapter.hosts:
            for served, pem in certificates:
                for mistake in certificate_problems(pem, host=host):
                    lot.add_note(served, f"{key}: {mistake}, {instead}")
            if not certificates and not any(manifest.get("kind") == "Certificate" for manifest in lot.objects):
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
