"""The programs that serve the metrics APIs: which workloads they are, and how APIServices lead to them.

Sources of the images and flags: the charts of prometheus-adapter, KEDA, metrics-server, kube-metrics-adapter and gpuscaler.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuscaler.doctor.documents import TEMPLATES, Document, template_of
from gpuscaler.doctor.evidence import Evidence

RESOURCE, CUSTOM, EXTERNAL = "metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io"
#: The API groups of metrics: those of the HorizontalPodAutoscaler.
METRICS_GROUPS = (RESOURCE, CUSTOM, EXTERNAL)
#: Kinds whose pods keep running; a Job serves nothing.
_SERVING = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Pod")
#: Programs by their image, with the groups that each always serves.
_PROGRAMS: Final = (
    ("prometheus-adapter", re.compile(r"(^|/)(k8s-)?prometheus-adapter([-/:@]|$)"), ()),
    ("KEDA", re.compile(r"(^|/)keda-metrics-(apiserver|adapter)([:@]|$)"), (EXTERNAL,)),
    ("metrics-server", re.compile(r"(^|/)metrics-server([-/:@]|$)"), (RESOURCE,)),
    ("kube-metrics-adapter", re.compile(r"(^|/)kube-metrics-adapter([:@]|$)"), (CUSTOM, EXTERNAL)),
    ("k8s-cloudwatch-adapter", re.compile(r"(^|/)k8s-cloudwatch-adapter([:@]|$)"), (EXTERNAL,)),
    ("gpuscaler metrics", re.compile(r"(^|/)gpuscaler([:@]|$)"), (CUSTOM, EXTERNAL)),
    ("custom-metrics-stackdriver-adapter", re.compile(r"(^|/)custom-metrics-stackdriver-adapter([:@]|$)"), (CUSTOM, EXTERNAL)),
)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that serves metrics: its name, its workload and container, and the groups that it certainly serves."""

    name: str
    workload: Document
    container: Document
    groups: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Its command and arguments."""
        return (*self.container.texts("command"), *self.container.texts("args"))


def flag_of(words: Iterable[str], name: str) -> str | None:
    """The value of the flag ``name``, written as ``--name=value``, ``-name=value`` or in two words; None if it is not there."""
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag.startswith("-") and flag.lstrip("-") == name:
            return value if equals else next(rest, "")
    return None


class Serving:
    """The workloads of a cluster by namespace, and what leads to them."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._services = {(space_of(service), service.name): service for service in evidence.of("Service")}
        self._by_namespace: dict[str, list[tuple[dict[str, str], Document]]] = {}
        for workload in evidence.of(*_SERVING):
            self._by_namespace.setdefault(space_of(workload), []).append((_labels(workload), workload))
        self.programs: tuple[Program, ...] = tuple(
            program
            for workload in evidence.of(*_SERVING)
            if not _is_owned(workload) and workload.number("spec", "replicas") != 0
            for program in _programs(workload, evidence)
        )

    @property
    def services(self) -> tuple[Document, ...]:
        return tuple(self._services.values())

    @property
    def has_all_services(self) -> bool:
        """Whether these are all Services of a cluster, and not those of some files: every cluster has ``default/kubernetes``."""
        return ("default", "kubernetes") in self._services

    def service(self, namespace: str, name: str) -> Document | None:
        return self._services.get((namespace, name))

    def services_named(self, name: str) -> tuple[Document, ...]:
        return tuple(service for (_, found), service in self._services.items() if found == name)

    def service_of(self, api_service: Document) -> Document | None:
        """The Service that an APIService names, if it exists."""
        return self.service(api_service.text("spec", "service", "namespace"), api_service.text("spec", "service", "name"))

    def behind(self, service: Document) -> tuple[Document, ...]:
        """The workloads whose pods a Service selects; empty for one without a selector."""
        selector = service.pairs("spec", "selector").items()
        if not selector:
            return ()
        return tuple(workload for labels, workload in self._by_namespace.get(space_of(service), ()) if selector <= labels.items())

    def before(self, workload: Document) -> tuple[Document, ...]:
        """The Services that select the pods of a workload."""
        labels = _labels(workload)
        return tuple(
            service
            for service in self._services.values()
            if space_of(service) == space_of(workload)
            and (selector := service.pairs("spec", "selector"))
            and selector.items() <= labels.items()
        )

    def serving(self, group: str) -> tuple[Program, ...]:
        """The programs that certainly serve ``group``."""
        return tuple(program for program in self.programs if group in program.groups)

    def program_of(self, service: Document) -> Program | None:
        """The known program behind a Service."""
        workloads = self.behind(service)
        return next((program for program in self.programs if program.workload in workloads), None)


def space_of(document: Document) -> str:
    """The namespace of an object; kubectl applies a file without one to ``default``."""
    return document.namespace or "default"


def _labels(workload: Document) -> dict[str, str]:
    """The labels of the pods of a workload."""
    return workload.labels if workload.kind == "Pod" else workload.pairs(*TEMPLATES[workload.kind], "metadata", "labels")


def _is_owned(workload: Document) -> bool:
    return any(owner.flag("controller") and owner.text("kind") in TEMPLATES for owner in workload.parts("metadata", "ownerReferences"))


def _programs(workload: Document, evidence: Evidence) -> Iterator[Program]:
    template = template_of(workload) or Document({})
    for name in ("containers", "initContainers"):
        for container in template.parts("spec", name):
            known = _known(container.text("image"))
            if known is not None and (known[0] != "gpuscaler metrics" or container.texts("args")[:1] == ("metrics",)):
                more = _configured_groups(workload, container, evidence) if known[0] == "prometheus-adapter" else ()
                yield Program(known[0], workload, container, tuple(dict.fromkeys((*known[1], *more))))


@lru_cache(maxsize=1 << 12)
def _known(image: str) -> tuple[str, tuple[str, ...]] | None:
    """The program of an image and the groups that it always serves."""
    return next(((name, groups) for name, pattern, groups in _PROGRAMS if pattern.search(image)), None)


def _configured_groups(workload: Document, container: Document, evidence: Evidence) -> tuple[str, ...]:
    """The groups that prometheus-adapter has rules for in its file; custom metrics if the file cannot be found."""
    text = file_of(workload, container, flag_of((*container.texts("command"), *container.texts("args")), "config") or "", evidence)
    if not text:
        return (CUSTOM,)
    found = (CUSTOM, "rules"), (EXTERNAL, "externalRules"), (RESOURCE, "resourceRules")
    # A key with something under it: `externalRules: []` and `externalRules: null` have none. No two parts of the pattern take the same
    # characters, since anyone may write a million line ends.
    return tuple(group for group, key in found if re.search(rf"^{key}:(?:[ \t\r]*(?:#.*)?\n)+[ \t]*(?:-|\w)", text, re.MULTILINE))


def file_of(workload: Document, container: Document, path: str, evidence: Evidence) -> str:
    """The text of a mounted file that comes from a ConfigMap; empty if it cannot be found."""
    for kind, name, key in mounted(workload, container, path):
        document = evidence.find("ConfigMap", workload.namespace, name) if kind == "ConfigMap" else None
        if document is not None:
            return document.pairs("data").get(key, "")
    return ""


def mounted(workload: Document, container: Document, path: str) -> Iterator[tuple[str, str, str]]:
    """The objects that the file ``path`` of a container may come from, as (kind, name, key): of ConfigMaps and Secrets."""
    template = template_of(workload) or Document({})
    volumes = {volume.text("name"): volume for volume in template.parts("spec", "volumes")}
    for mount in sorted(container.parts("volumeMounts"), key=lambda mount: -len(mount.text("mountPath"))):
        folder = mount.text("mountPath").rstrip("/")
        volume = volumes.get(mount.text("name"))
        if volume is None or not folder or not (path == folder or path.startswith(f"{folder}/")):
            continue
        file = path[len(folder) + 1 :] or mount.text("subPath")
        for source in (volume, *volume.parts("projected", "sources")):
            for kind, part, name in (
                ("ConfigMap", "configMap", source.text("configMap", "name")),
                ("Secret", "secret", source.text("secret", "secretName") or source.text("secret", "name")),
            ):
                if name:
                    keys: Mapping[str, str] = {item.text("path"): item.text("key") for item in source.parts(part, "items")}
                    yield kind, name, keys.get(file, file)
