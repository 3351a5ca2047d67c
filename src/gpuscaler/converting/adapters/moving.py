"""A workload of prometheus-adapter with its namespace, and moves of objects to it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuscaler.converting.adapters.adapter import is_adapter
from gpuscaler.converting.adapters.references import account_of, config_references, key_of, namespace_of, pod_labels, selects_pods
from gpuscaler.converting.objects import AddObjectNote, Json, containers, ensure_mapping, pod_template


@dataclass(frozen=True, slots=True)
class AdapterWorkload:
    """A workload of prometheus-adapter, its namespace and account, its Services, and the host names under which it is called."""

    workload: Json
    namespace: str
    account: str
    labels: Json
    services: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}.{self.namespace}.svc" for name in self.services)


def adapter_workloads(objects: Iterable[Json]) -> Iterator[AdapterWorkload]:
    """The workloads of prometheus-adapter with a namespace; without one, it depends on how ``kubectl`` is called."""
    objects = list(objects)
    for manifest in objects:
        namespace = namespace_of(manifest)
        if namespace and any(map(is_adapter, containers(manifest))):
            labels = pod_labels(manifest)
            services = [item for item in objects if item.get("kind") == "Service" and selects_pods(item, [labels])]
            yield AdapterWorkload(manifest, namespace, account_of(manifest), labels, tuple(key_of(item)[1] for item in services))


class ObjectSet:
    """The objects that are converted together, with their moves: ``services`` has the former places of Services, ``(name, namespace)``."""

    def __init__(self, objects: list[Json], add_note: AddObjectNote) -> None:
        self.objects = objects
        self.add_note = add_note
        self.services: dict[tuple[str, str], str] = {}
        self.namespaces: set[str] = set()

    def add_namespace(self, manifest: Json, namespace: str, reason: str) -> None:
        """Give an object without a namespace one."""
        self.add_note(manifest, f"added the namespace {namespace}, {reason}")
        self._place(manifest, namespace)

    def move(self, manifest: Json, namespace: str, reason: str) -> None:
        """Move an object to another namespace."""
        before = namespace_of(manifest)
        self._place(manifest, namespace)
        self.add_note(manifest, f"moved {f'from {before} ' if before else ''}to {namespace}, {reason}")
        if manifest.get("kind") == "Service":
            self.services[key_of(manifest)[1], before] = namespace

    def _place(self, manifest: Json, namespace: str) -> None:
        ensure_mapping(manifest, "metadata")["namespace"] = namespace
        self.namespaces.add(namespace)

    def named(self, kind: str, name: str) -> list[Json]:
        """The objects of that kind and name, in all namespaces."""
        return [manifest for manifest in self.objects if key_of(manifest) == (kind, name)]

    def exists(self, kind: str, name: str, namespace: str) -> bool:
        return any(namespace_of(manifest) == namespace for manifest in self.named(kind, name))

    def is_only_of(self, adapter: AdapterWorkload, manifest: Json) -> bool:
        """Whether no workload but that of ``adapter`` needs ``manifest`` where it is."""
        kind, name = key_of(manifest)
        namespace = namespace_of(manifest)
        for other in self.objects:
            if other is adapter.workload or pod_template(other) is None or namespace_of(other) != namespace:
                continue
            if kind in ("Secret", "ConfigMap") and (kind, name) in {reference[:2] for reference in config_references(other)}:
                return False
            if kind == "ServiceAccount" and account_of(other) == name:
                return False
            if selects_pods(manifest, [pod_labels(other)]):
                return False
        return True
