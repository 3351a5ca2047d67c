"""Converts workloads of prometheus-adapter to run ``gpuscaler metrics``, with the same flags and the same rules.

Source: prometheus-adapter v0.12 and its manifests; the write-up on HPA with GPU metrics of Alibaba Cloud (2018).
"""

import re
from collections.abc import Iterable

from gpuscaler.metrics.converting.objects import Json, Say, Unconvertible, containers, items, pod_template, seen, text

_IMAGE = re.compile(r"(^|/)(k8s-)?prometheus-adapter([-/:@]|$)")
#: Flags without effect here, which would only be logged at each start. A flag with its value in the next word stays.
_DROPPED = re.compile(r"--?((logtostderr|alsologtostderr)(=.*)?|(stderrthreshold|v|vmodule)=.*)$")
#: A flag of kube-controller-manager: the default since 1.9, and rejected since it was removed.
_REST_CLIENTS = re.compile(r"--horizontal-pod-autoscaler-use-rest-clients(=.*)?$")


def is_adapter(container: Json) -> bool:
    command = container.get("command")
    return _IMAGE.search(text(container.get("image"))) is not None or (isinstance(command, list) and command[:1] == ["/adapter"])


def accounts(objects: Iterable[Json]) -> set[str]:
    """The names of the service accounts that prometheus-adapter runs as."""
    names = set()
    for one in objects:
        if any(map(is_adapter, containers(one))):
            spec = seen(pod_template(one) or {}, "spec")
            names.add(text(spec.get("serviceAccountName") or spec.get("serviceAccount")) or "default")
    return names


def convert(one: Json, image: str, say: Say) -> None:
    """Replace containers of prometheus-adapter in ``one`` by ours, and remove a flag that keeps kube-controller-manager from starting."""
    for container in containers(one):
        if is_adapter(container):
            _replace(container, image, say)
        for key in ("command", "args"):
            words = container.get(key)
            if isinstance(words, list) and any(_REST_CLIENTS.match(text(word)) for word in words):
                container[key] = [word for word in words if not _REST_CLIENTS.match(text(word))]
                say("removed --horizontal-pod-autoscaler-use-rest-clients: it is the default, and the flag does not exist any more")


def _replace(container: Json, image: str, say: Say) -> None:
    command, args = container.get("command") or ["/adapter"], container.get("args") or []
    if not isinstance(command, list) or not isinstance(args, list):
        raise Unconvertible("saw a command or args of prometheus-adapter that are not lists, expected lists of words; correct them")
    say(f"image: {container.get('image')} became {image}; use --image for the place where you pushed it")
    container["image"] = image
    container.pop("command", None)
    words = [*command[1:], *args]
    dropped = [text(word) for word in words if _DROPPED.match(text(word))]
    if dropped:
        say(f"removed {' '.join(dropped)}, which have no effect in gpuscaler metrics")
    container["args"] = ["metrics", *(text(word) for word in words if text(word) not in dropped)]


def grant(role: Json, say: Say) -> None:
    """Allow a role of prometheus-adapter to watch what it may list: gpuscaler watches objects."""
    for rule in items(role, "rules"):
        verbs = rule.get("verbs")
        if isinstance(verbs, list) and "list" in verbs and "watch" not in verbs:
            verbs.append("watch")
            resources = rule.get("resources")
            named = ", ".join(map(text, resources)) if isinstance(resources, list) else "nothing"
            say(f"added the verb watch for {named}: objects are watched, not listed")


def roles_of(names: set[str], objects: Iterable[Json]) -> set[tuple[str, str]]:
    """The kinds and names of the roles that the service accounts of these ``names`` are bound to."""
    found = set()
    for one in objects:
        bound = any(subject.get("kind") == "ServiceAccount" and text(subject.get("name")) in names for subject in items(one, "subjects"))
        if bound and isinstance(one.get("roleRef"), dict):
            found.add((text(one["roleRef"].get("kind")), text(one["roleRef"].get("name"))))
    return found


def meant_namespace(objects: Iterable[Json]) -> str:
    """The single namespace in which APIServices of metrics expect the Service, if the Service of that name has no namespace itself."""
    wanted: dict[str, str] = {}
    services: dict[str, set[str]] = {}
    for one in objects:
        if one.get("kind") == "APIService" and text(seen(one, "spec").get("group")).endswith(".metrics.k8s.io"):
            service = seen(seen(one, "spec"), "service")
            wanted[text(service.get("name"))] = text(service.get("namespace"))
        elif one.get("kind") == "Service":
            metadata = seen(one, "metadata")
            services.setdefault(text(metadata.get("name")), set()).add(text(metadata.get("namespace")))
    lost = {namespace for name, namespace in wanted.items() if namespace and services.get(name) == {""}}
    return lost.pop() if len(lost) == 1 else ""


def adapters_own(objects: list[Json]) -> list[Json]:
    """prometheus-adapter's workloads with the Services to them, their account, and what they mount."""
    workloads = [one for one in objects if any(map(is_adapter, containers(one)))]
    names: set[tuple[str, str]] = set()
    labels = []
    for workload in workloads:
        template = pod_template(workload) or {}
        labels.append(seen(seen(template, "metadata"), "labels"))
        spec = seen(template, "spec")
        names.add(("ServiceAccount", text(spec.get("serviceAccountName") or spec.get("serviceAccount"))))
        for volume in items(spec, "volumes"):
            names.add(("ConfigMap", text(seen(volume, "configMap").get("name"))))
            names.add(("Secret", text(seen(volume, "secret").get("secretName"))))
    return workloads + [one for one in objects if one not in workloads and (_key(one) in names or leads_to(one, labels))]


def _key(one: Json) -> tuple[str, str]:
    return text(one.get("kind")), text(seen(one, "metadata").get("name"))


def leads_to(one: Json, labels: list[Json]) -> bool:
    """Whether ``one`` is a Service to pods of any of ``labels``."""
    if one.get("kind") != "Service":
        return False
    selector = seen(one, "spec").get("selector")
    return isinstance(selector, dict) and bool(selector) and any(selector.items() <= pods.items() for pods in labels)
