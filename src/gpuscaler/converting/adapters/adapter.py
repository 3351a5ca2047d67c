"""Converts workloads of prometheus-adapter to run ``gpuscaler metrics``, with the same flags and the same rules.

Source: prometheus-adapter v0.12 and its manifests; the write-up on HPA with GPU metrics of Alibaba Cloud (2018).
"""

import re
from collections.abc import Iterable

from gpuscaler.converting.adapters.references import account_of, key_of, namespace_of
from gpuscaler.converting.objects import AddNote, Json, Unconvertible, containers, get_items, get_mapping, text

_IMAGE = re.compile(r"(^|/)(k8s-)?prometheus-adapter([-/:@]|$)")
#: Flags without effect here, which would only be logged at each start. A flag with its value in the next word stays.
_DROPPED = re.compile(r"--?((logtostderr|alsologtostderr)(=.*)?|(stderrthreshold|v|vmodule)=.*)$")
#: A flag of kube-controller-manager: the default since 1.9, and rejected since it was removed.
_REST_CLIENTS = re.compile(r"--horizontal-pod-autoscaler-use-rest-clients(=.*)?$")


def is_adapter(container: Json) -> bool:
    command = container.get("command")
    return _IMAGE.search(text(container.get("image"))) is not None or (isinstance(command, list) and command[:1] == ["/adapter"])


def service_accounts(objects: Iterable[Json]) -> set[tuple[str, str]]:
    """The service accounts that prometheus-adapter runs as: name and namespace, which is empty if it is not stated."""
    return {(account_of(manifest), namespace_of(manifest)) for manifest in objects if any(map(is_adapter, containers(manifest)))}


def convert(manifest: Json, image: str, add_note: AddNote) -> None:
    """Replace containers of prometheus-adapter by ours, and remove a flag that keeps kube-controller-manager from starting."""
    for container in containers(manifest):
        if is_adapter(container):
            _replace(container, image, add_note)
        for key in ("command", "args"):
            words = container.get(key)
            if isinstance(words, list) and any(_REST_CLIENTS.match(text(word)) for word in words):
                container[key] = [word for word in words if not _REST_CLIENTS.match(text(word))]
                add_note("removed --horizontal-pod-autoscaler-use-rest-clients: it is the default, and the flag does not exist any more")


def _replace(container: Json, image: str, add_note: AddNote) -> None:
    command, args = container.get("command") or ["/adapter"], container.get("args") or []
    if not isinstance(command, list) or not isinstance(args, list):
        raise Unconvertible("saw a command or args of prometheus-adapter that are not lists, expected lists of words; correct them")
    add_note(f"image: {container.get('image')} became {image}; use --image for the place where you pushed it")
    container["image"] = image
    container.pop("command", None)
    words = [text(word) for word in (*command[1:], *args)]
    dropped = [word for word in words if _DROPPED.match(word)]
    if dropped:
        add_note(f"removed {' '.join(dropped)}, which have no effect in gpuscaler metrics")
    container["args"] = ["metrics", *(word for word in words if not _DROPPED.match(word))]


def allow_watch(role: Json, add_note: AddNote) -> None:
    """Allow a role of prometheus-adapter to watch what it may list: gpuscaler watches objects."""
    for rule in get_items(role, "rules"):
        verbs = rule.get("verbs")
        if isinstance(verbs, list) and "list" in verbs and "watch" not in verbs:
            verbs.append("watch")
            resources = rule.get("resources")
            names = ", ".join(map(text, resources)) if isinstance(resources, list) else "nothing"
            add_note(f"added the verb watch for {names}: objects are watched, not listed")


def roles_of(accounts: set[tuple[str, str]], objects: Iterable[Json]) -> set[tuple[str, str]]:
    """The kinds and names of the roles that the service accounts are bound to."""
    names = {name for name, namespace in accounts if not namespace}
    roles = set()
    for binding in objects:
        bound = any(
            subject.get("kind") == "ServiceAccount"
            and (text(subject.get("name")) in names or (text(subject.get("name")), text(subject.get("namespace"))) in accounts)
            for subject in get_items(binding, "subjects")
        )
        if bound and isinstance(binding.get("roleRef"), dict):
            roles.add((text(binding["roleRef"].get("kind")), text(binding["roleRef"].get("name"))))
    return roles


def is_metrics_api(manifest: Json) -> bool:
    """Whether ``manifest`` is the APIService of custom or external metrics."""
    return manifest.get("kind") == "APIService" and text(get_mapping(manifest, "spec").get("group")).endswith(".metrics.k8s.io")


def named_services(objects: Iterable[Json]) -> set[tuple[str, str]]:
    """Names and namespaces of the Services that APIServices of metrics name, if these objects have the Service in no other namespace.

    An API that two APIServices give to different Services does not count.
    """
    named: dict[str, set[tuple[str, str]]] = {}
    services: dict[str, set[str]] = {}
    for manifest in objects:
        if is_metrics_api(manifest):
            service = get_mapping(get_mapping(manifest, "spec"), "service")
            named.setdefault(key_of(manifest)[1], set()).add((text(service.get("name")), text(service.get("namespace"))))
        elif manifest.get("kind") == "Service":
            services.setdefault(key_of(manifest)[1], set()).add(namespace_of(manifest))
    found = {pair for pairs in named.values() if len(pairs) == 1 for pair in pairs}
    return {(name, namespace) for name, namespace in found if namespace and services.get(name) in ({""}, {namespace})}
