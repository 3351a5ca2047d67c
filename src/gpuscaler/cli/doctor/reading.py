"""Reads what ``gpuscaler doctor`` looks at: files as kubectl prints them, or a live cluster as far as the user's rights go."""

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

import click
import msgspec

from gpuscaler.cli.doctor.probing import with_probes
from gpuscaler.cli.reaching import describe_failure
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import CLOCKS, CLUSTER, Evidence
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Forbidden, NotFound, ServerError, Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    SERVICES,
    WATCHED,
    Resource,
)
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding import InputError, Interner
from gpuscaler.model.decoding.depth import without_depths
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.model.decoding.text.yamls import yaml_objects

#: Kinds that checks read and planning does not.
OTHERS: tuple[Resource, ...] = (
    CONFIG_MAPS,
    SERVICES,
    SERVICE_ACCOUNTS,
    LEASES,
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "endpoints", "Endpoints"),
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("", "v1", "replicationcontrollers", "ReplicationController"),
    Resource("batch", "v1", "cronjobs", "CronJob"),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject", optional=True),
    Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor", optional=True),
    Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor", optional=True),
    Resource("karpenter.sh", "v1", "nodepools", "NodePool", namespaced=False, older=("v1beta1",), optional=True),
)
#: Parts of objects that no check reads, and that take most of their memory.
_UNREAD = ("managedFields",)


class FileError(Exception):
    """A file that cannot be read; the text names it, what was seen, and what was expected."""


@dataclass(slots=True)
class _Collector:
    """Collects objects as documents and as planning sees them."""

    interner: Interner = field(default_factory=Interner)
    documents: dict[str, list[Document]] = field(default_factory=lambda: defaultdict(list))
    items: list[Item] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    _owners: set[str] = field(default_factory=set)

    def add(self, raw: Mapping[str, Any], *, kind: str = "", api_version: str = "", place: str = "") -> None:
        metadata = raw.get("metadata")
        if isinstance(metadata, Mapping) and any(name in metadata for name in _UNREAD):
            raw = {**raw, "metadata": {name: value for name, value in metadata.items() if name not in _UNREAD}}
        decoded = decode_object(raw, self.interner, kind=kind, api_version=api_version)
        if isinstance(decoded, Skipped):
            self.skipped.append(decoded)
        elif decoded is not None:
            self.items += decoded if isinstance(decoded, Iterable) else (decoded,)
        document = Document({"kind": kind, "apiVersion": api_version, **raw}, place)
        if document.kind != "Pod" or self._is_first_of_its_owner(document):
            self.documents[document.kind].append(document)

    def add_json(self, data: bytes, *, kind: str, api_version: str) -> None:
        """Add an object of a live cluster. One that cannot be decoded is set aside."""
        try:
            try:
                raw = msgspec.json.decode(data)
            except RecursionError:
                raw = msgspec.json.decode(without_depths(data))
        except (msgspec.MsgspecError, RecursionError) as error:
            self.skipped.append(Skipped(kind, f"saw {error}, expected a Kubernetes object as JSON"))
            return
        if isinstance(raw, Mapping):
            self.add(raw, kind=kind, api_version=api_version)

    def _is_first_of_its_owner(self, pod: Document) -> bool:
        """Whether ``pod`` is the first of its controller in its phase: the pods of a controller are alike."""
        owner = next((owner.text("uid") for owner in pod.parts("metadata", "ownerReferences") if owner.flag("controller")), "")
        key = f"{owner} {pod.text('status', 'phase')}"
        if not owner or key not in self._owners:
            self._owners.add(key)
            return True
        return False

    def evidence(self, now: float, unread: Mapping[str, str]) -> Evidence:
        documents = {kind: tuple(documents) for kind, documents in self.documents.items()}
        return Evidence(now, documents, Cluster.of(self.items, self.skipped), unread=unread)


def evidence_of_files(files: Iterable[str], *, now: float) -> Evidence:
    """The objects of ``files``; ``-`` is standard input. A kind that no file has counts as unread, since the files may be a part only."""
    collector = _Collector()
    for file in files:
        name = "standard input" if file == "-" else file
        try:
            with click.open_file(file, "rb") as stream:
                for item in _objects(cast("BinaryIO", stream), name):
                    if isinstance(item, Skipped):
                        collector.skipped.append(item)
                        continue
                    place, raw, kind, api_version = item
                    if isinstance(raw, Mapping):
                        collector.add(raw, kind=kind, api_version=api_version, place=place)
                    else:
                        collector.skipped.append(Skipped(place, f"saw a {type(raw).__name__}, expected a Kubernetes object"))
        except InputError as error:
            raise FileError(str(error)) from error
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise FileError(f"{name}: saw {reason}, expected a readable file with Kubernetes objects") from error
    missing = [resource.kind for resource in (*WATCHED, *OTHERS) if resource.kind not in collector.documents]
    return collector.evidence(now, {**dict.fromkeys(missing, "no file has such objects"), CLOCKS: "files have none"})


def _objects(stream: BinaryIO, name: str) -> Iterator[tuple[str, Any, str, str] | Skipped]:
    """The objects of a file with their place, and kind and version from a typed List; and what cannot be read."""
    data = stream.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    text = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        raise FileError(f"{name}: saw an empty file, expected Kubernetes objects")
    if text[:1] in (b"{", b"["):
        for raw in _json_values(text, name):
            yield from _members(raw, name)
        return
    for item in yaml_objects(io.BytesIO(data), name):
        if isinstance(item, Skipped):
            yield item
            continue
        place, raw, kind, api_version = item
        yield f"{name} {place}", raw, kind, api_version


def _json_values(text: bytes, name: str) -> Iterator[Any]:
    """JSON values one after the other, as several calls of kubectl append them to a file; without what is nested too deeply."""
    try:
        yield msgspec.json.decode(text)
        return
    except RecursionError:
        text = without_depths(text)
    except msgspec.DecodeError:
        pass
    decoder, rest = json.JSONDecoder(), text.decode("utf-8", "replace")
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except RecursionError as error:
            shallow = without_depths(rest.encode()).decode()
            if shallow == rest:
                raise FileError(f"{name}: saw values nested too deeply, expected Kubernetes objects as JSON") from error
            rest = shallow
            continue
        except ValueError as error:
            raise FileError(f"{name}: saw {error}, expected Kubernetes objects as JSON") from error
        yield value
        rest = rest[end:].lstrip()


def _members(raw: Any, place: str, kind: str = "", api_version: str = "") -> Iterator[tuple[str, Any, str, str]]:
    """The items of a List or an array; another object itself."""
    if isinstance(raw, list):
        for item in raw:
            yield from _members(item, place)
    elif isinstance(raw, Mapping) and str(raw.get("kind", "")).endswith("List") and isinstance(raw.get("items"), list):
        of_items = str(raw["kind"]).removesuffix("List")
        for item in raw["items"]:
            yield from _members(item, place, of_items, str(raw.get("apiVersion", "")) if of_items else "")
    else:
        yield place, raw, kind, api_version


def evidence_of_objects(objects: Iterable[Mapping[str, Any]], *, now: float) -> Evidence:
    """A cluster that has exactly ``objects``."""
    collector = _Collector()
    for raw in objects:
        collector.add(raw)
    return collector.evidence(now, {})


async def evidence_of_cluster(access: Access, *, now: float, inside: bool = False) -> Evidence:
    """The objects of a live cluster, and what it answers. What the user may not read, or the server does not answer, is unread.

    ``inside`` is whether this runs in a pod of the cluster.
    """
    collector, unread = _Collector(), {}
    async with HttpTransport(access) as transport:
        client = Client(transport, dry_run=True)
        resources = (*WATCHED, *OTHERS)
        try:
            # A server that does not answer at all, or only with failures, is not asked for each kind.
            await client.get(NAMESPACES, "kube-system")
        except (Unreachable, ServerError) as error:
            reason, _ = describe_failure(access, error)
            return collector.evidence(now, dict.fromkeys((*(resource.kind for resource in resources), CLUSTER, CLOCKS), reason))
        except ApiError:
            pass
        for resource in resources:
            if reason := await _collect(client, resource, collector):
                unread[resource.kind] = reason
        if any(kind in unread for kind in ("Node", "Pod")):
            unread[CLUSTER] = "; ".join(f"{kind}: {unread[kind]}" for kind in ("Node", "Pod") if kind in unread)
        return await with_probes(client, collector.evidence(now, unread), inside=inside)


async def _collect(client: Client, resource: Resource, collector: _Collector) -> str:
    """Collect the objects of ``resource``; returns the reason why they cannot be read."""
    for version in (resource.version, *resource.older):
        try:
            for data in await client.list_all(resource.at(version)):
                collector.add_json(data, kind=resource.kind, api_version=resource.at(version).api_version)
        except NotFound:
            continue
        except Forbidden:
            return f"there is no permission to list {resource.label}; allow the verb list"
        except (ApiError, Unreachable) as error:
            return str(error)
        return ""
    return "" if resource.optional else f"the server does not know {resource.label}"


def with_documents(evidence: Evidence, documents: Mapping[str, Iterable[Mapping[str, Any]]], unread: Mapping[str, str]) -> Evidence:
    """``evidence`` with more documents and reasons, by kind."""
    added = {kind: tuple(Document(entry) for entry in entries) for kind, entries in documents.items()}
    return replace(evidence, documents={**evidence.documents, **added}, unread={**evidence.unread, **unread})
