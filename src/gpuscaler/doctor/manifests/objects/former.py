"""Names that were replaced: labels of nodes, and images."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuscaler.doctor.documents import TEMPLATES, containers_of, template_of
from gpuscaler.doctor.findings import INFO, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, renamed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.objects.workloads import manifest_path
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path

_LABEL = Mistake("L19", WARNING, "autoscalers may not know it, and clouds stop setting it: pods match no node")
_MASTER = Mistake("L19", WARNING, "no node has it since Kubernetes 1.24: pods match no node")
_REGISTRY = Mistake("L20", WARNING, "the registry is closed: it has no new versions, and pulls fail one day")
_ARCHIVED = Mistake("L20", WARNING, "its security holes are not mended, and it may not know the versions of the API that are served")
_OLD = Mistake("L20", WARNING, "it is years old, and does not know the GPUs and drivers of today")
_DASHBOARD = Mistake("L20", INFO, "its security holes are not mended any more")
_CLOSED: Final = "k8s.gcr.io"
_LABELS: Final = {
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "node-role.kubernetes.io/master": "node-role.kubernetes.io/control-plane",
}
_TERMS: Final[Path] = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PLUGIN: Final = re.compile(r"(docker\.io/)?nvidia/k8s-device-plugin:(v?1\.\d.*|1\.0\.0-.*|v0\.[0-9](\.\d+)?)$")


def find_former_labels(manifests: Manifests) -> Iterable[Finding]:
    """L19: labels of nodes that have other names now."""
    for manifest in manifests.of(*TEMPLATES):
        template = template_of(manifest.document)
        if template is None:
            continue
        base: Path = (*TEMPLATES[manifest.document.kind], "spec")
        for key in template.pairs("spec", "nodeSelector"):
            if key in _LABELS:
                path = (*base, "nodeSelector", key)
                yield _mistake(key).at(manifest, path, seen=key, expected=_LABELS[key], new=renamed(manifest.data, path, _LABELS[key]))
        terms = list(_expressions(template.value("spec", *(str(step) for step in _TERMS))))
        known = {expression.get("key") for _, expression in terms}
        for place, expression in terms:
            key = str(expression.get("key"))
            # Terms of which one has the former name, and another that of today, fit both.
            if key in _LABELS and _LABELS[key] not in known:
                path = (*base, *_TERMS, *place, "key")
                yield _mistake(key).at(manifest, path, seen=key, expected=_LABELS[key], new=changed(manifest.data, path, _LABELS[key]))


def _mistake(key: str) -> Mistake:
    return _MASTER if key.endswith("/master") else _LABEL


def _expressions(terms: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    for number, term in enumerate(terms if isinstance(terms, list) else []):
        listed = term.get("matchExpressions") if isinstance(term, dict) else None
        for index, expression in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(expression, dict) and isinstance(expression.get("key"), str):
                yield (number, "matchExpressions", index), expression


def find_former_images(manifests: Manifests) -> Iterable[Finding]:
    """L20: images that are not maintained, or have moved."""
    for manifest in manifests.of(*TEMPLATES):
        template = template_of(manifest.document)
        for text, container in containers_of(template) if template is not None else ():
            path = (*TEMPLATES[manifest.document.kind], *manifest_path(text), "image")
            yield from _former_image(manifest, path, container.text("image"))
    for manifest in manifests.items:
        if not manifest.document.kind and not manifest.document.api_version:
            for path, image in _images_of_values(manifest.data, ()):
                yield from _former_image(manifest, path, image)


def _images_of_values(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """The images in values of a chart: ``image: name``, or a mapping with ``repository``, and maybe ``registry`` and ``tag``."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _images_of_values(item, (*path, index))
    if not isinstance(value, Mapping):
        return
    texts = {name: text for name in ("registry", "repository", "image", "tag") if isinstance(text := value.get(name), str)}
    tag = f":{texts['tag']}" if "tag" in texts else ""
    if texts.get("registry") == _CLOSED:
        yield (*path, "registry"), _CLOSED
    for name in ("repository", "image"):
        if name in texts:
            yield (*path, name), texts[name] + (tag if name == "repository" else "")
    for key, item in value.items():
        yield from _images_of_values(item, (*path, str(key)))


def _former_image(manifest: Manifest, path: Path, image: str) -> Iterator[Finding]:
    if "heapster" in image:
        yield _ARCHIVED.at(manifest, path, seen=image, expected="metrics-server, and gpuscaler metrics for GPUs", advice="remove it")
    elif re.search(r"kubernetes-?(ui/)?dashboard|kubernetesui/", image):
        yield _DASHBOARD.at(manifest, path, seen=image, expected="Headlamp, its successor", advice="remove it, or install Headlamp")
    elif _PLUGIN.match(image):
        expected = "nvcr.io/nvidia/k8s-device-plugin of 0.17 or later, or the GPU operator"
        yield _OLD.at(manifest, path, seen=image, expected=expected, advice="install it with its chart")
    elif image == _CLOSED or image.startswith(f"{_CLOSED}/"):
        entry = manifest.entry(path)
        written = entry.value if entry is not None and isinstance(entry.value, str) else image
        right = f"registry.k8s.io{written.removeprefix(_CLOSED)}"
        yield _REGISTRY.at(manifest, path, seen=written, expected=right, new=changed(manifest.data, path, right))


LINTS = (
    Lint("L19", "labels of nodes with other names", find_former_labels),
    Lint("L20", "images that are not maintained", find_former_images),
)
