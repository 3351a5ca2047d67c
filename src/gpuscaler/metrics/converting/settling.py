"""Moves what prometheus-adapter needs to the namespace in which it runs: its bindings, its mounts, its certificate.

A pod reads only Secrets and ConfigMaps of its own namespace, a binding names the namespace of the account, and the API server calls a
Service by a name that contains the namespace. If one of them is left behind, everything can be applied but nothing works.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpuscaler.metrics.command.certificates import mistakes
from gpuscaler.metrics.converting.adapters import is_adapter, leads_to
from gpuscaler.metrics.converting.objects import Json, containers, items, mapping, pod_template, seen, text

#: Notes a message about an object.
Tell = Callable[[Json, str], None]
_READER = "extension-apiserver-authentication-reader"
_CERTIFICATE_FLAG = "--tls-cert-file="


@dataclass(frozen=True, slots=True)
class Home:
    """A workload of prometheus-adapter, its namespace and account, and the host names under which it is called."""

    workload: Json
    namespace: str
    account: str
    hosts: tuple[str, ...]


def settle(objects: list[Json], tell: Tell) -> None:
    """Correct ``objects`` that do not fit the namespace in which prometheus-adapter runs, and note what cannot be corrected."""
    for home in homes(objects):
        for one in objects:
            if one.get("kind") in ("RoleBinding", "ClusterRoleBinding"):
                _bind(one, home, objects, tell)
        for kind, name, optional in sorted(set(references(home.workload))):
            _bring(kind, name, home, objects, tell, optional=optional)
        _certify(home, objects, tell)
    for one in objects:
        if one.get("kind") in ("Role", "ClusterRole"):
            _narrow(one, tell)


def homes(objects: Iterable[Json]) -> Iterator[Home]:
    """The workloads of prometheus-adapter with a namespace; without one, it depends on how ``kubectl`` is called."""
    objects = list(objects)
    for one in objects:
        namespace = text(seen(one, "metadata").get("namespace"))
        if namespace and any(map(is_adapter, containers(one))):
            template = pod_template(one) or {}
            spec, labels = seen(template, "spec"), seen(seen(template, "metadata"), "labels")
            services = [text(seen(service, "metadata").get("name")) for service in objects if leads_to(service, [labels])]
            account = text(spec.get("serviceAccountName") or spec.get("serviceAccount")) or "default"
            yield Home(one, namespace, account, tuple(f"{name}.{namespace}.svc" for name in services))


def references(workload: Json) -> Iterator[tuple[str, str, bool]]:
    """Kind and name of each Secret and ConfigMap that its pods use, and whether it is optional."""
    spec = seen(pod_template(workload) or {}, "spec")
    for volume in items(spec, "volumes"):
        yield from _mounted(volume, "secretName")
        for source in items(seen(volume, "projected"), "sources"):
            yield from _mounted(source, "name")
    for container in containers(workload):
        for source in items(container, "envFrom"):
            yield from _named(source, {"secretRef": "Secret", "configMapRef": "ConfigMap"})
        for variable in items(container, "env"):
            yield from _named(seen(variable, "valueFrom"), {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"})
    for pulled in items(spec, "imagePullSecrets"):
        if pulled.get("name"):
            yield "Secret", text(pulled["name"]), False


def _mounted(source: Json, secret_key: str) -> Iterator[tuple[str, str, bool]]:
    for kind, key, name in (("Secret", "secret", secret_key), ("ConfigMap", "configMap", "name")):
        found = seen(source, key)
        if found.get(name):
            yield kind, text(found[name]), found.get("optional") is True


def _named(source: Json, kinds: dict[str, str]) -> Iterator[tuple[str, str, bool]]:
    for key, kind in kinds.items():
        found = seen(source, key)
        if found.get("name"):
            yield kind, text(found["name"]), found.get("optional") is True


def _bind(binding: Json, home: Home, objects: list[Json], tell: Tell) -> None:
    """Change ``binding`` to name the account in its current namespace."""
    subjects = [
        item for item in items(binding, "subjects") if item.get("kind") == "ServiceAccount" and text(item.get("name")) == home.account
    ]
    for subject in subjects:
        before = text(subject.get("namespace"))
        if before != home.namespace and not _is_there("ServiceAccount", home.account, before, objects):
            subject["namespace"] = home.namespace
            tell(binding, f"its subject ServiceAccount {home.account} is in {home.namespace} now{f', not in {before}' if before else ''}")
    if subjects and binding.get("kind") == "RoleBinding":
        metadata, role = mapping(binding, "metadata"), seen(binding, "roleRef")
        wanted = "kube-system" if text(role.get("name")) == _READER else home.namespace
        if not metadata.get("namespace"):
            metadata["namespace"] = wanted
            tell(binding, f"added the namespace {wanted} of its role")
            for one in objects:
                if one.get("kind") == role.get("kind") == "Role" and text(seen(one, "metadata").get("name")) == text(role.get("name")):
                    mapping(one, "metadata").setdefault("namespace", wanted)


def _bring(kind: str, name: str, home: Home, objects: list[Json], tell: Tell, *, optional: bool) -> None:
    """Move a Secret or ConfigMap that the pods need to their namespace."""
    there = [one for one in objects if one.get("kind") == kind and text(seen(one, "metadata").get("name")) == name]
    if any(text(seen(one, "metadata").get("namespace")) == home.namespace for one in there) or _makes(kind, name, home, objects, tell):
        return
    if not there:
        if not optional:
            tell(
                home.workload,
                f"its pods need the {kind} {name}, which is not among these objects: make sure that it is in {home.namespace}",
            )
        return
    one = there[0]
    before = text(seen(one, "metadata").get("namespace"))
    if before and _is_needed(kind, name, before, objects):
        tell(
            home.workload,
            f"its pods need the {kind} {name} in {home.namespace}; here it is in {before}, where other pods need it too: copy it",
        )
        return
    mapping(one, "metadata")["namespace"] = home.namespace
    tell(one, f"moved {f'from {before} ' if before else ''}to {home.namespace}, where the pods that need it run")


def _makes(kind: str, name: str, home: Home, objects: list[Json], tell: Tell) -> bool:
    """Whether cert-manager makes the Secret; if so, correct the namespace and the names of its Certificate."""
    makers = [one for one in objects if one.get("kind") == "Certificate" and text(seen(one, "spec").get("secretName")) == name]
    for one in makers if kind == "Secret" else ():
        metadata, spec = mapping(one, "metadata"), mapping(one, "spec")
        if text(metadata.get("namespace")) != home.namespace:
            metadata["namespace"] = home.namespace
            tell(one, f"moved to {home.namespace}, where the pods that need its Secret run")
        names = listed if isinstance(listed := spec.get("dnsNames"), list) else []
        lacking = [host for host in home.hosts if host not in names]
        if lacking:
            spec["dnsNames"] = [*names, *lacking]
            tell(one, f"added the name {', '.join(lacking)}, which the API server uses")
    return kind == "Secret" and bool(makers)


def _certify(home: Home, objects: list[Json], tell: Tell) -> None:
    """Note a served certificate that is not for the name that the API server uses."""
    instead = "or remove --tls-cert-file: gpuscaler metrics makes a certificate itself"
    mounted = {name for kind, name, _ in references(home.workload) if kind == "Secret"}
    secrets = [one for one in objects if one.get("kind") == "Secret" and text(seen(one, "metadata").get("name")) in mounted]
    for key in _served(home.workload):
        found = [(secret, pem) for secret in secrets if (pem := _pem(secret, key))]
        for host in home.hosts:
            for one, pem in found:
                for mistake in mistakes(pem, host=host):
                    tell(one, f"{key}: {mistake}, {instead}")
            if not found and not any(one.get("kind") == "Certificate" for one in objects):
                tell(home.workload, f"make sure that the certificate {key} is for {host}, the name that the API server uses, {instead}")


def _served(workload: Json) -> Iterator[str]:
    """The file names of served certificates, which are their keys in a Secret."""
    for container in containers(workload):
        for words in (container.get("command"), container.get("args")):
            for word in words if isinstance(words, list) else []:
                if text(word).startswith(_CERTIFICATE_FLAG):
                    yield text(word).rpartition("/")[2].removeprefix(_CERTIFICATE_FLAG)


def _pem(secret: Json, key: str) -> bytes:
    plain = seen(secret, "stringData").get(key)
    if plain is not None:
        return text(plain).encode()
    try:
        return b64decode(text(seen(secret, "data").get(key)))
    except (Base64Error, ValueError):
        return b""


def _narrow(role: Json, tell: Tell) -> None:
    """Note rights that are wider than necessary."""
    for place, rule in enumerate(items(role, "rules")):
        groups, verbs = ([text(one) for one in found] if isinstance(found := rule.get(key), list) else [] for key in ("apiGroups", "verbs"))
        if "*" in verbs and any(group.endswith("metrics.k8s.io") for group in groups):
            tell(role, f"rules[{place}] allows every verb on {', '.join(groups)}; get and list are enough to read metrics")


def _is_there(kind: str, name: str, namespace: str, objects: Iterable[Json]) -> bool:
    return any(
        one.get("kind") == kind
        and (text(seen(one, "metadata").get("name")), text(seen(one, "metadata").get("namespace"))) == (name, namespace)
        for one in objects
    )


def _is_needed(kind: str, name: str, namespace: str, objects: Iterable[Json]) -> bool:
    """Whether a workload in the namespace needs the object."""
    return any(
        text(seen(one, "metadata").get("namespace")) == namespace and (kind, name) in {reference[:2] for reference in references(one)}
        for one in objects
        if pod_template(one) is not None
    )
