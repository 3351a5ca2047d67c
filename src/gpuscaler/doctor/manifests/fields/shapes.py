"""Which fields an object in a file may have, and what these hold.

``name:Type`` is an object of another entry, ``name:Type*`` a list of them, ``name:=A|B`` one of these texts. ``text``, ``int``, ``bool``
and ``quantity`` are values, ``texts`` and ``pairs`` lists and mappings of texts, ``quantities`` a mapping to quantities. What has no type
is free. ``name!`` has to be there. An entry that begins with ``...`` has other fields, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpuscaler.doctor.manifests.fields import kubernetes, programs
from gpuscaler.doctor.manifests.reading import Manifest, Path


class Field(NamedTuple):
    """A field: what it holds, ``several`` if that is a list of objects, the ``values`` that it takes, and whether it has to be there."""

    holds: str
    several: bool
    values: tuple[str, ...]
    required: bool


class Shape(NamedTuple):
    """The known fields of an object; ``closed`` if these are all."""

    fields: Mapping[str, Field]
    closed: bool


class Part(NamedTuple):
    """An object of the type ``name`` at ``path`` of ``manifest``."""

    manifest: Manifest
    path: Path
    name: str
    shape: Shape
    data: Mapping[str, Any]


def _field(name: str, text: str) -> Field:
    values = tuple(text[1:].split("|")) if text.startswith("=") else ()
    return Field("" if values else text.removesuffix("*"), text.endswith("*"), values, name.endswith("!"))


def _shape(text: str) -> Shape:
    words = [word.partition(":") for word in text.split()]
    return Shape({name.rstrip("!"): _field(name, kind) for name, _, kind in words if name != "..."}, not text.startswith("..."))


SHAPES: Final[Mapping[str, Shape]] = {name: _shape(text) for name, text in {**kubernetes.TEXT, **programs.TEXT}.items()}
#: The type of ``spec`` by version and kind.
_SPECS: Final[Mapping[tuple[str, str], str]] = {
    ("v1", "Pod"): "PodSpec",
    ("v1", "ReplicationController"): "ReplicationControllerSpec",
    **{("apps/v1", kind): f"{kind}Spec" for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")},
    ("batch/v1", "Job"): "JobSpec",
    ("batch/v1", "CronJob"): "CronJobSpec",
    ("batch/v1beta1", "CronJob"): "CronJobSpec",
    ("policy/v1", "PodDisruptionBudget"): "PodDisruptionBudgetSpec",
    ("policy/v1beta1", "PodDisruptionBudget"): "PodDisruptionBudgetSpec",
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "HorizontalPodAutoscalerSpec",
    ("autoscaling/v2beta2", "HorizontalPodAutoscaler"): "HorizontalPodAutoscalerSpec",
    ("autoscaling/v1", "HorizontalPodAutoscaler"): "HorizontalPodAutoscalerV1",
    ("karpenter.sh/v1", "NodePool"): "NodePoolSpec",
    ("karpenter.k8s.aws/v1", "EC2NodeClass"): "EC2NodeClassSpec",
    ("keda.sh/v1alpha1", "ScaledObject"): "ScaledObjectSpec",
    ("kops.k8s.io/v1alpha2", "InstanceGroup"): "InstanceGroup",
    ("kops/v1alpha2", "InstanceGroup"): "InstanceGroup",
}


def parts_of(manifest: Manifest) -> Iterator[Part]:
    """The objects in ``manifest`` whose fields are known."""
    document = manifest.document
    spec = _SPECS.get((document.api_version, document.kind))
    if spec is not None:
        yield from _parts(manifest, document.value("spec"), spec, ("spec",))
    elif document.kind == "ClusterConfig" and document.api_version.startswith("eksctl.io/"):
        yield from _parts(manifest, manifest.data, "ClusterConfig", ())
    elif not document.kind and document.has("autoscalingGroups"):
        yield from _parts(manifest, manifest.data, "Chart", ())


def _parts(manifest: Manifest, data: Any, name: str, path: Path) -> Iterator[Part]:
    if not isinstance(data, dict):
        return
    shape = SHAPES[name]
    yield Part(manifest, path, name, shape, data)
    for key, field in shape.fields.items():
        if field.holds not in SHAPES:
            continue
        value = data.get(key)
        for index, item in enumerate(value) if field.several and isinstance(value, list) else ():
            yield from _parts(manifest, item, field.holds, (*path, key, index))
        if not field.several:
            yield from _parts(manifest, value, field.holds, (*path, key))


def text_paths(manifest: Manifest) -> Iterator[Path]:
    """The paths of values that have to be text."""
    for part in parts_of(manifest):
        for name, field in part.shape.fields.items():
            value, path = part.data.get(name), (*part.path, name)
            if field.holds == "text" or field.values:
                yield path
            elif field.holds == "texts" and isinstance(value, list):
                yield from ((*path, index) for index, _ in enumerate(value))
            elif field.holds == "pairs" and isinstance(value, dict):
                yield from ((*path, key) for key in value)


def is_filled_in_later(value: Any) -> bool:
    """Whether another program puts a value in the place of this text: ``${REPLICAS}``, ``<name>``, ``{{ … }}``."""
    return isinstance(value, str) and ("$" in value or "{{" in value or value.startswith("<"))


def refusal(manifest: Manifest) -> str:
    """What happens to an object with a value that is not taken, as a clause."""
    version = manifest.document.api_version
    if version.startswith("eksctl.io/"):
        return "eksctl refuses the file"
    if "kops" in version:
        return "kops refuses the object"
    return "the API server refuses the object" if version else "the autoscaler does not start"
