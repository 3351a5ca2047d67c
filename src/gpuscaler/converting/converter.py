"""Converts the objects of files."""

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

from gpuscaler.converting.adapters import adapter
from gpuscaler.converting.adapters.rights import only_reads
from gpuscaler.converting.adapters.settling import fix_namespaces
from gpuscaler.converting.objects import (
    AddNote,
    Json,
    Note,
    Unconvertible,
    containers,
    get_items,
    get_mapping,
    name_of,
    pod_template,
    text,
)
from gpuscaler.converting.versions import horizontal, ingresses, workloads
from gpuscaler.model.api_versions import removal_of

_GROUPS = frozenset({"extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"})
_AUTOSCALERS = frozenset({"autoscaling/v1", "autoscaling/v2beta1", "autoscaling/v2beta2"})
#: Kinds without an automatic replacement.
_ADVICE = {
    "PodSecurityPolicy": "PodSecurityPolicies were removed in 1.25; label the namespace pod-security.kubernetes.io/enforce instead",
    "CustomResourceDefinition": "its schema has to be structural in apiextensions.k8s.io/v1; rewrite it",
}


def convert(objects: Iterable[Json], *, image: str) -> tuple[list[Json], list[Note]]:
    """Convert ``objects`` to versions that are served now, and note the changes. ``image`` replaces that of prometheus-adapter.

    What cannot be converted stays unchanged, with a note that says why. Objects that need no conversion stay unchanged.
    """
    # Separate copies: a change to a YAML anchor would otherwise appear in two places.
    manifests = [copy.deepcopy(manifest) for manifest in objects]
    notes: list[Note] = []
    places = {id(manifest): place for place, manifest in enumerate(manifests)}

    def add_object_note(manifest: Json, message: str, /, *, failed: bool = False) -> None:
        notes.append(Note(name_of(manifest), message, places[id(manifest)], failed))

    fix_namespaces(manifests, add_object_note)
    roles = adapter.roles_of(adapter.service_accounts(manifests), manifests)
    for place, manifest in enumerate(manifests):
        add_note = partial(add_object_note, manifest)
        before = copy.deepcopy(manifest)
        try:
            _convert(manifest, add_note)
            adapter.convert(manifest, image, add_note)
            if (text(manifest.get("kind")), text(get_mapping(manifest, "metadata").get("name"))) in roles and only_reads(manifest):
                adapter.allow_watch(manifest, add_note)
        except Unconvertible as error:
            manifests[place] = before
            add_object_note(manifest, f"not converted: {error}", failed=True)
    return manifests, notes


def _convert(manifest: Json, add_note: AddNote) -> None:
    version, kind = text(manifest.get("apiVersion")), text(manifest.get("kind"))
    removal = removal_of(version, kind)
    if version in _AUTOSCALERS and kind == "HorizontalPodAutoscaler":
        horizontal.convert(manifest, add_note)
    elif removal is None:
        if version in _GROUPS or version.startswith("autoscaling/v2beta"):
            raise Unconvertible(f"API version {version} never had kind {kind}; correct the kind or the apiVersion")
    elif removal.instead == "apps/v1":
        workloads.convert(manifest, add_note)
    elif kind == "Ingress":
        ingresses.convert(manifest, add_note)
    elif removal.same and removal.instead:
        manifest["apiVersion"] = removal.instead
    else:
        instead = f"its fields differ in {removal.instead}; rewrite it" if removal.instead else "no version of it is left; remove it"
        raise Unconvertible(_ADVICE.get(kind, f"{version} was removed in Kubernetes {removal.gone}: {instead}"))
    if manifest["apiVersion"] != version:
        add_note(f"{version} became {manifest['apiVersion']}")
    _advise(manifest, add_note)
    _quote(manifest, add_note)


def _advise(manifest: Json, add_note: AddNote) -> None:
    """Note settings that are valid but probably not intended."""
    spec: Any = manifest.get("spec")
    if manifest.get("kind") == "APIService" and isinstance(spec, dict):
        if spec.get("insecureSkipTLSVerify"):
            add_note("insecureSkipTLSVerify: the server is not authenticated; put the authority of its certificate in caBundle instead")
        for key in ("groupPriorityMinimum", "versionPriority"):
            if spec.get(key) is None:
                spec[key] = 100
                add_note(f"added spec.{key}: 100, which the API requires")


def _quote(manifest: Json, add_note: AddNote) -> None:
    """Quote scalars where the API requires text: ``gpu: true`` is a boolean in YAML and would be rejected."""
    template = pod_template(manifest) or manifest
    places = {f"metadata.{key}": get_mapping(get_mapping(manifest, "metadata"), key) for key in ("labels", "annotations")}
    if template is not manifest:
        places |= {f"metadata.{key} of its pods": get_mapping(get_mapping(template, "metadata"), key) for key in ("labels", "annotations")}
    places["nodeSelector"] = get_mapping(get_mapping(template, "spec"), "nodeSelector")
    places["spec.selector.matchLabels"] = get_mapping(get_mapping(get_mapping(manifest, "spec"), "selector"), "matchLabels")
    for place, values in places.items():
        for name, value in values.items():
            # This includes dates.
            if not isinstance(value, str | list | dict | None):
                values[name] = text(value)
                add_note(f'quoted {place}: {name}: "{values[name]}"')
    for container in containers(manifest):
        for variable in get_items(container, "env"):
            if isinstance(variable.get("value"), bool | int | float):
                variable["value"] = text(variable["value"])
                # Without its value, which may be a password.
                add_note(f"quoted the environment variable {text(variable.get('name'))}")
