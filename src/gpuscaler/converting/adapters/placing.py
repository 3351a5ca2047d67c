"""Workloads of prometheus-adapter with their namespaces, and all objects by what they are named, select and refer to."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuscaler.converting.adapters.adapter import is_adapter
from gpuscaler.converting.adapters.references import (
    ACCOUNT_ANNOTATION,
    account_of,
    config_references,
    key_of,
    namespace_of,
    pod_labels,
    selector_of,
)
from gpuscaler.converting.objects import AddObjectNote, Json, containers, ensure_mapping, get_mapping, name_of, pod_template, text


@dataclass(frozen=True, slots=True)
class AdapterWorkload:
    """A workload of prometheus-adapter, its namespace and account, and the names of its Services there.

    ``is_known`` says that an APIService names its namespace: a workload alone is no reason to change what it refers to, since everyone who
    may write a workload chooses its image, its labels and the names in it.
    """

    workload: Json
    namespace: str
    is_known: bool = False
    services: list[str] = field(default_factory=list)

    @property
    def account(self) -> str:
        return account_of(self.workload)

    @property
    def title(self) -> str:
        return name_of(self.workload)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names under which it is called."""
        return tuple(f"{name}.{self.namespace}.svc" for name in self.services)


class PodIndex:
    """Workloads by the labels of their pods, so that those that a selector selects are found without looking at all."""

    def __init__(self, workloads: Iterable[Json]) -> None:
        self._by_label: dict[tuple[str | None, str, str], list[Json]] = {}
        for workload in workloads:
            for key, value in pod_labels(workload).items():
                for namespace in (namespace_of(workload), None):
                    self._by_label.setdefault((namespace, str(key), text(value)), []).append(workload)

    def selected(self, selector: Json | None, namespace: str | None) -> Iterator[Json]:
        """The workloads of ``namespace``, None for all, whose pods ``selector`` selects; none for an empty selector."""
        if selector:
            lists = (self._by_label.get((namespace, str(key), text(value)), []) for key, value in selector.items())
            yield from (item for item in min(lists, key=len) if selector.items() <= pod_labels(item).items())


class ObjectSet:
    """The objects that are converted together. ``namespaces`` are those that objects were given."""

    def __init__(self, objects: list[Json], add_note: AddObjectNote) -> None:
        self.objects = objects
        self.add_note = add_note
        self.namespaces: set[str] = set()
        self._named: dict[tuple[str, str], list[Json]] = {}
        self._placed = Counter((*key_of(manifest), namespace_of(manifest)) for manifest in objects)
        for manifest in objects:
            self._named.setdefault(key_of(manifest), []).append(manifest)
        self._tokens: dict[str, list[Json]] = {}
        for manifest in self.of_kind("Secret"):
            owner = get_mapping(get_mapping(manifest, "metadata"), "annotations").get(ACCOUNT_ANNOTATION)
            self._tokens.setdefault(text(owner), []).append(manifest)
        self.by_secret: dict[str, list[Json]] = {}
        for manifest in self.of_kind("Certificate"):
            self.by_secret.setdefault(text(get_mapping(manifest, "spec").get("secretName")), []).append(manifest)

    def index_workloads(self) -> None:
        """Note what workloads other than prometheus-adapter need where they are; after the namespaces of workloads are settled."""
        self.workloads = [manifest for manifest in self.objects if pod_template(manifest) is not None]
        others = [manifest for manifest in self.workloads if not any(map(is_adapter, containers(manifest)))]
        self.pods = PodIndex(self.workloads)
        self._other_pods = PodIndex(others)
        self._needed = {(kind, name, namespace_of(other)) for other in others for kind, name, _ in config_references(other)}
        self._needed |= {("ServiceAccount", account_of(other), namespace_of(other)) for other in others}

    def of_kind(self, *kinds: str) -> Iterator[Json]:
        return (manifest for manifest in self.objects if manifest.get("kind") in kinds)

    def named(self, kind: str, name: str) -> list[Json]:
        """The objects of that kind and name, in all namespaces."""
        return self._named.get((kind, name), [])

    def exists(self, kind: str, name: str, namespace: str) -> bool:
        return self._placed[kind, name, namespace] > 0

    def tokens_of(self, account: str) -> list[Json]:
        """The Secrets with tokens of accounts of that name."""
        return self._tokens.get(account, [])

    def is_needed(self, kind: str, name: str, namespace: str) -> bool:
        """Whether a workload other than prometheus-adapter needs the object in ``namespace``."""
        return (kind, name, namespace) in self._needed

    def is_shared(self, manifest: Json) -> bool:
        """Whether a workload other than prometheus-adapter needs ``manifest`` where it is."""
        namespace = namespace_of(manifest)
        return self.is_needed(*key_of(manifest), namespace) or any(self._other_pods.selected(selector_of(manifest), namespace))

    def add_namespace(self, manifest: Json, namespace: str, reason: str) -> None:
        """Give an object without a namespace one."""
        self.add_note(manifest, f"added the namespace {namespace}, {reason}")
        ensure_mapping(manifest, "metadata")["namespace"] = namespace
        self.namespaces.add(namespace)
        self._placed[*key_of(manifest), ""] -= 1
        self._placed[*key_of(manifest), namespace] += 1

    def refuse(self, manifest: Json, message: str) -> None:
        """Note something that does not work as it is, and that only a person may correct."""
        self.add_note(manifest, message, failed=True)
