"""Moves what prometheus-adapter needs to the namespace in which it runs: its bindings, its mounts, its certificate.

A pod reads only Secrets and ConfigMaps of its own namespace, a binding names the namespace of the account, and the API server calls a
Service by a name that contains the namespace. If one of them is left behind, everything can be applied but nothing works.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuscaler.converting.adapters.adapter import is_adapter, selects_pods
from gpuscaler.converting.objects import AddObjectNote, Json, containers, ensure_mapping, get_items, get_mapping, pod_template, text
from gpuscaler.model.certificates import certificate_problems

_READER = "extension-apiserver-authentication-reader"
_CERTIFICATE_FLAG = "--tls-cert-file="


@dataclass(frozen=True, slots=True)
class AdapterWorkload:
    """A workload of prometheus-adapter, its namespace and account, and the host names under which it is called."""

    workload: Json
    namespace: str
    account: str
    hosts: tuple[str, ...]


def fix_namespaces(objects: list[Json], add_note: AddObjectNote) -> None:
    """Correct ``objects`` that do not fit the namespace in which prometheus-adapter runs, and note what cannot be corrected."""
    for adapter in adapter_workloads(objects):
        for manifest in objects:
            if manifest.get("kind") in ("RoleBinding", "ClusterRoleBinding"):
                _fix_binding(manifest, adapter, objects, add_note)
        for kind, name, optional in sorted(set(config_references(adapter.workload))):
            _move(kind, name, adapter, objects, add_note, optional=optional)
        _check_certificates(adapter, objects, add_note)
    for manifest in objects:
        if manifest.get("kind") in ("Role", "ClusterRole"):
            _note_wide_rights(manifest, add_note)


def adapter_workloads(objects: Iterable[Json]) -> Iterator[AdapterWorkload]:
    """The workloads of prometheus-adapter with a namespace; without one, it depends on how ``kubectl`` is called."""
    objects = list(objects)
    for manifest in objects:
        namespace = text(get_mapping(manifest, "metadata").get("namespace"))
        if namespace and any(map(is_adapter, containers(manifest))):
            template = pod_template(manifest) or {}
            spec, labels = get_mapping(template, "spec"), get_mapping(get_mapping(template, "metadata"), "labels")
            services = [text(get_mapping(service, "metadata").get("name")) for service in objects if selects_pods(service, [labels])]
            account = text(spec.get("serviceAccountName") or spec.get("serviceAccount")) or "default"
            yield AdapterWorkload(manifest, namespace, account, tuple(f"{name}.{namespace}.svc" for name in services))


def config_references(workload: Json) -> Iterator[tuple[str, str, bool]]:
    """Kind and name of each Secret and ConfigMap that its pods use, and whether it is optional."""
    spec = get_mapping(pod_template(workload) or {}, "spec")
    for volume in get_items(spec, "volumes"):
        yield from _mounted(volume, "secretName")
        for source in get_items(get_mapping(volume, "projected"), "sources"):
            yield from _mounted(source, "name")
    for container in containers(workload):
        for source in get_items(container, "envFrom"):
            yield from _named(source, {"secretRef": "Secret", "configMapRef": "ConfigMap"})
        for variable in get_items(container, "env"):
            yield from _named(get_mapping(variable, "valueFrom"), {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"})
    for pull_secret in get_items(spec, "imagePullSecrets"):
        if pull_secret.get("name"):
            yield "Secret", text(pull_secret["name"]), False


def _mounted(source: Json, secret_key: str) -> Iterator[tuple[str, str, bool]]:
    for kind, key, name in (("Secret", "secret", secret_key), ("ConfigMap", "configMap", "name")):
        reference = get_mapping(source, key)
        if reference.get(name):
            yield kind, text(reference[name]), reference.get("optional") is True


def _named(source: Json, kinds: dict[str, str]) -> Iterator[tuple[str, str, bool]]:
    for key, kind in kinds.items():
        reference = get_mapping(source, key)
        if reference.get("name"):
            yield kind, text(reference["name"]), reference.get("optional") is True


def _fix_binding(binding: Json, adapter: AdapterWorkload, objects: list[Json], add_note: AddObjectNote) -> None:
    """Change ``binding`` to name the account in its current namespace."""
    subjects = [
        item
        for item in get_items(binding, "subjects")
        if item.get("kind") == "ServiceAccount" and text(item.get("name")) == adapter.account
    ]
    for subject in subjects:
        before = text(subject.get("namespace"))
        if before != adapter.namespace and not _exists("ServiceAccount", adapter.account, before, objects):
            subject["namespace"] = adapter.namespace
            add_note(
                binding,
                f"its subject ServiceAccount {adapter.account} is in {adapter.namespace} now{f', not in {before}' if before else ''}",
            )
    if subjects and binding.get("kind") == "RoleBinding":
        metadata, role = ensure_mapping(binding, "metadata"), get_mapping(binding, "roleRef")
        namespace = "kube-system" if text(role.get("name")) == _READER else adapter.namespace
        if not metadata.get("namespace"):
            metadata["namespace"] = namespace
            add_note(binding, f"added the namespace {namespace} of its role")
            for manifest in objects:
                if manifest.get("kind") == role.get("kind") == "Role" and text(get_mapping(manifest, "metadata").get("name")) == text(
                    role.get("name")
                ):
                    ensure_mapping(manifest, "metadata").setdefault("namespace", namespace)


def _move(kind: str, name: str, adapter: AdapterWorkload, objects: list[Json], add_note: AddObjectNote, *, optional: bool) -> None:
    """Move a Secret or ConfigMap that the pods need to their namespace."""
    named = [
        manifest for manifest in objects if manifest.get("kind") == kind and text(get_mapping(manifest, "metadata").get("name")) == name
    ]
    if any(text(get_mapping(manifest, "metadata").get("namespace")) == adapter.namespace for manifest in named) or _is_issued(
        kind, name, adapter, objects, add_note
    ):
        return
    if not named:
        if not optional:
            add_note(
                adapter.workload,
                f"its pods need the {kind} {name}, which is not among these objects: make sure that it is in {adapter.namespace}",
            )
        return
    manifest = named[0]
    before = text(get_mapping(manifest, "metadata").get("namespace"))
    if before and _is_needed(kind, name, before, objects):
        add_note(
            adapter.workload,
            f"its pods need the {kind} {name} in {adapter.namespace}; here it is in {before}, where other pods need it too: copy it",
        )
        return
    ensure_mapping(manifest, "metadata")["namespace"] = adapter.namespace
    add_note(manifest, f"moved {f'from {before} ' if before else ''}to {adapter.namespace}, where the pods that need it run")


def _is_issued(kind: str, name: str, adapter: AdapterWorkload, objects: list[Json], add_note: AddObjectNote) -> bool:
    """Whether cert-manager makes the Secret; if so, correct the namespace and the names of its Certificate."""
    certificates = [
        certificate
        for certificate in objects
        if certificate.get("kind") == "Certificate" and text(get_mapping(certificate, "spec").get("secretName")) == name
    ]
    for certificate in certificates if kind == "Secret" else ():
        metadata, spec = ensure_mapping(certificate, "metadata"), ensure_mapping(certificate, "spec")
        if text(metadata.get("namespace")) != adapter.namespace:
            metadata["namespace"] = adapter.namespace
            add_note(certificate, f"moved to {adapter.namespace}, where the pods that need its Secret run")
        names = listed if isinstance(listed := spec.get("dnsNames"), list) else []
        lacking = [host for host in adapter.hosts if host not in names]
        if lacking:
            spec["dnsNames"] = [*names, *lacking]
            add_note(certificate, f"added the name {', '.join(lacking)}, which the API server uses")
    return kind == "Secret" and bool(certificates)


def _check_certificates(adapter: AdapterWorkload, objects: list[Json], add_note: AddObjectNote) -> None:
    """Note a served certificate that is not for the name that the API server uses."""
    instead = "or remove --tls-cert-file: gpuscaler metrics makes a certificate itself"
    mounted = {name for kind, name, _ in config_references(adapter.workload) if kind == "Secret"}
    secrets = [
        manifest
        for manifest in objects
        if manifest.get("kind") == "Secret" and text(get_mapping(manifest, "metadata").get("name")) in mounted
    ]
    for key in _certificate_keys(adapter.workload):
        certificates = [(secret, pem) for secret in secrets if (pem := _pem(secret, key))]
        for host in adapter.hosts:
            for served, pem in certificates:
                for mistake in certificate_problems(pem, host=host):
                    add_note(served, f"{key}: {mistake}, {instead}")
            if not certificates and not any(manifest.get("kind") == "Certificate" for manifest in objects):
                add_note(
                    adapter.workload, f"make sure that the certificate {key} is for {host}, the name that the API server uses, {instead}"
                )


def _certificate_keys(workload: Json) -> Iterator[str]:
    """The file names of served certificates, which are their keys in a Secret."""
    for container in containers(workload):
        for words in (container.get("command"), container.get("args")):
            for word in words if isinstance(words, list) else []:
                if text(word).startswith(_CERTIFICATE_FLAG):
                    yield text(word).rpartition("/")[2].removeprefix(_CERTIFICATE_FLAG)


def _pem(secret: Json, key: str) -> bytes:
    plain = get_mapping(secret, "stringData").get(key)
    if plain is not None:
        return text(plain).encode()
    try:
        return b64decode(text(get_mapping(secret, "data").get(key)))
    except (Base64Error, ValueError):
        return b""


def _note_wide_rights(role: Json, add_note: AddObjectNote) -> None:
    """Note rights that are wider than necessary."""
    for place, rule in enumerate(get_items(role, "rules")):
        groups, verbs = (
            [text(entry) for entry in entries] if isinstance(entries := rule.get(key), list) else [] for key in ("apiGroups", "verbs")
        )
        if "*" in verbs and any(group.endswith("metrics.k8s.io") for group in groups):
            add_note(role, f"rules[{place}] allows every verb on {', '.join(groups)}; get and list are enough to read metrics")


def _exists(kind: str, name: str, namespace: str, objects: Iterable[Json]) -> bool:
    return any(
        manifest.get("kind") == kind
        and (text(get_mapping(manifest, "metadata").get("name")), text(get_mapping(manifest, "metadata").get("namespace")))
        == (name, namespace)
        for manifest in objects
    )


def _is_needed(kind: str, name: str, namespace: str, objects: Iterable[Json]) -> bool:
    """Whether a workload in the namespace needs the object."""
    return any(
        text(get_mapping(manifest, "metadata").get("namespace")) == namespace
        and (kind, name) in {reference[:2] for reference in config_references(manifest)}
        for manifest in objects
        if pod_template(manifest) is not None
    )
