"""Converts the objects of files."""

import copy
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import yaml

from gpuscaler.metrics.converting import adapters, autoscalers, ingresses, workloads
from gpuscaler.metrics.converting.objects import (
    Json,
    Note,
    Say,
    Unconvertible,
    containers,
    items,
    mapping,
    name_of,
    pod_template,
    seen,
    text,
)
from gpuscaler.metrics.converting.settling import settle

#: Versions that were renamed without a relevant change of fields.
_RENAMED = {
    "apiregistration.k8s.io/v1beta1": "apiregistration.k8s.io/v1",
    "rbac.authorization.k8s.io/v1alpha1": "rbac.authorization.k8s.io/v1",
    "rbac.authorization.k8s.io/v1beta1": "rbac.authorization.k8s.io/v1",
    "batch/v1beta1": "batch/v1",
    "policy/v1beta1": "policy/v1",
    "scheduling.k8s.io/v1alpha1": "scheduling.k8s.io/v1",
    "scheduling.k8s.io/v1beta1": "scheduling.k8s.io/v1",
    "storage.k8s.io/v1beta1": "storage.k8s.io/v1",
    "coordination.k8s.io/v1beta1": "coordination.k8s.io/v1",
}
_GROUPS = frozenset({"extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"})
_WORKLOADS = frozenset({"Deployment", "DaemonSet", "StatefulSet", "ReplicaSet"})
_INGRESSES = frozenset({"extensions/v1beta1", "networking.k8s.io/v1beta1"})
_AUTOSCALERS = frozenset({"autoscaling/v1", "autoscaling/v2beta1", "autoscaling/v2beta2"})
#: Kinds without an automatic replacement.
_GONE = {
    "PodSecurityPolicy": "PodSecurityPolicies were removed in 1.25; label the namespace pod-security.kubernetes.io/enforce instead",
    "CustomResourceDefinition": "its schema has to be structural in apiextensions.k8s.io/v1; rewrite it",
}


#: Text that is a number or a boolean in kubectl's YAML, but not in PyYAML's.
_DOUBTFUL = re.compile(r"[yYnN]|[-+.]?[0-9].*", re.DOTALL)


class ManifestError(ValueError):
    """A file that is not YAML with Kubernetes objects."""


def read(source: str) -> list[Json]:
    """The objects in YAML or JSON, with Lists expanded. Raises :class:`ManifestError`."""
    try:
        documents = [one for one in yaml.safe_load_all(source) if one is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ManifestError(f"saw invalid YAML, expected Kubernetes objects: {' '.join(str(error).split())}") from error
    objects: list[Json] = []
    for number, one in enumerate(documents, 1):
        members = one.get("items") if isinstance(one, dict) and text(one.get("kind")).endswith("List") else [one]
        for member in members if isinstance(members, list) else [one]:
            if not isinstance(member, dict) or not member.get("kind") or not member.get("apiVersion"):
                raise ManifestError(f"document {number}: saw no apiVersion and kind, expected a Kubernetes object")
            objects.append(member)
    return objects


def write(objects: Iterable[Json]) -> str:
    """Write ``objects`` as YAML, one document for each."""
    return "---\n".join(yaml.dump(one, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120) for one in objects)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else "'" if _DOUBTFUL.fullmatch(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def convert(objects: Iterable[Json], *, image: str) -> tuple[list[Json], list[Note]]:
    """Convert ``objects`` to versions that are served now, and note the changes. ``image`` replaces that of prometheus-adapter.

    What cannot be converted stays unchanged, with a note that says why. Objects that need no conversion stay unchanged.
    """
    # Separate copies: a change to a YAML anchor would otherwise appear in two places.
    found = [copy.deepcopy(one) for one in objects]
    notes: list[Note] = []
    _place(found, notes)
    settle(found, lambda one, message: _say(notes, name_of(one), message))
    roles = adapters.roles_of(adapters.accounts(found), found)
    for number, one in enumerate(found):
        say = partial(_say, notes, name_of(one))
        before = copy.deepcopy(one)
        try:
            _convert(one, say)
            adapters.convert(one, image, say)
            if (text(one.get("kind")), text(seen(one, "metadata").get("name"))) in roles:
                adapters.grant(one, say)
        except Unconvertible as error:
            found[number] = before
            say(f"not converted: {error}")
    return found, notes


def _say(notes: list[Note], where: str, message: str) -> None:
    notes.append(Note(where, message))


def _place(objects: list[Json], notes: list[Note]) -> None:
    """Give prometheus-adapter the namespace that its APIService names: without a namespace, manifests end up in ``default``."""
    namespace = adapters.meant_namespace(objects)
    for one in adapters.adapters_own(objects) if namespace else ():
        metadata = mapping(one, "metadata")
        if not metadata.get("namespace"):
            notes.append(Note(name_of(one), f"added the namespace {namespace}, where its APIService expects it"))
            metadata["namespace"] = namespace


def _convert(one: Json, say: Say) -> None:
    version, kind = text(one.get("apiVersion")), text(one.get("kind"))
    if kind in _GONE and version.endswith(("v1beta1", "v1alpha1")):
        raise Unconvertible(_GONE[kind])
    if version in _GROUPS and kind in _WORKLOADS:
        workloads.convert(one, say)
    elif version in _INGRESSES and kind == "Ingress":
        ingresses.convert(one, say)
    elif version == "extensions/v1beta1" and kind == "NetworkPolicy":
        one["apiVersion"] = "networking.k8s.io/v1"
    elif version in _AUTOSCALERS and kind == "HorizontalPodAutoscaler":
        autoscalers.convert(one, say)
    elif version in _RENAMED:
        one["apiVersion"] = _RENAMED[version]
    elif version in _GROUPS or version.startswith("autoscaling/v2beta"):
        raise Unconvertible(f"saw {kind} of {version}, expected a kind that this version had; correct it")
    if one["apiVersion"] != version:
        say(f"{version} became {one['apiVersion']}")
    _advise(one, say)
    _quote(one, say)


def _advise(one: Json, say: Say) -> None:
    """Note settings that are valid but probably not intended."""
    spec: Any = one.get("spec")
    if one.get("kind") == "APIService" and isinstance(spec, dict):
        if spec.get("insecureSkipTLSVerify"):
            say("insecureSkipTLSVerify: the server is not authenticated; put the authority of its certificate in caBundle instead")
        spec.setdefault("groupPriorityMinimum", 100)
        spec.setdefault("versionPriority", 100)


def _quote(one: Json, say: Say) -> None:
    """Quote scalars where the API requires text: ``gpu: true`` is a boolean in YAML and would be rejected."""
    template = pod_template(one) or one
    places = {f"metadata.{key}": seen(seen(one, "metadata"), key) for key in ("labels", "annotations")}
    if template is not one:
        places |= {f"metadata.{key} of its pods": seen(seen(template, "metadata"), key) for key in ("labels", "annotations")}
    places["nodeSelector"] = seen(seen(template, "spec"), "nodeSelector")
    for what, values in places.items():
        for name, value in values.items():
            # This includes dates.
            if not isinstance(value, str | list | dict | None):
                values[name] = text(value)
                say(f'quoted {what}: {name}: "{values[name]}"')
    for container in containers(one):
        for variable in items(container, "env"):
            if isinstance(variable.get("value"), bool | int | float):
                variable["value"] = text(variable["value"])
                say(f'quoted the environment variable {variable.get("name")}: "{variable["value"]}"')
