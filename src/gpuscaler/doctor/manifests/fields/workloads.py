"""Fields of workloads that do not go together: selectors and labels, restart policies, tolerations, budgets."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuscaler.doctor.documents import TEMPLATES
from gpuscaler.doctor.findings import CRITICAL, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.fields.shapes import Part, is_filled_in_later, parts_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path

_REFUSED = Mistake("L27", CRITICAL, "the API server refuses the object")
_POLICIES: Final = ("Always", "OnFailure", "Never")


def find_contradictions(manifests: Manifests) -> Iterable[Finding]:
    """L27: fields that the API server refuses together."""
    for manifest in manifests.items:
        for part in parts_of(manifest):
            if part.name == "Toleration":
                yield from _toleration(part)
            elif part.name == "PodDisruptionBudgetSpec":
                yield from _budget(part)
        if TEMPLATES.get(manifest.document.kind):
            yield from _labels(manifest)
            yield from _restarts(manifest)


def _toleration(part: Part) -> Iterator[Finding]:
    if part.data.get("operator") == "Exists" and part.data.get("value") not in (None, ""):
        path = (*part.path, "value")
        new = removed(part.manifest.data, path)
        seen = f"{part.data['value']} beside operator: Exists"
        yield _REFUSED.at(part.manifest, path, seen=seen, expected="no value, or operator: Equal", new=new, advice="remove the value")


def _budget(part: Part) -> Iterator[Finding]:
    if part.data.get("minAvailable") is not None and part.data.get("maxUnavailable") is not None:
        path = (*part.path, "minAvailable")
        seen, new = "minAvailable beside maxUnavailable", removed(part.manifest.data, path)
        yield _REFUSED.at(part.manifest, path, seen=seen, expected="one of them", new=new, advice="remove one of them")


def _labels(manifest: Manifest) -> Iterator[Finding]:
    """A selector that does not match the labels of its own template."""
    path: tuple[str, ...] = ("spec", "selector", "matchLabels")
    selector = path[:2] if manifest.document.kind == "ReplicationController" else path
    if manifest.document.kind in ("Job", "CronJob"):
        return
    place = ("spec", "template", "metadata", "labels")
    wanted, labels = manifest.document.value(*selector), manifest.document.value(*place)
    if not isinstance(wanted, dict) or not isinstance(labels, dict):
        return
    for key, value in wanted.items():
        has = labels.get(key)
        if isinstance(value, dict | list) or is_filled_in_later(value) or is_filled_in_later(has) or str(has) == str(value):
            continue
        yield _REFUSED.at(
            manifest,
            (*place, str(key)),
            seen=f"{key}: {has}" if has is not None else f"no label {key}",
            expected=f"{key}: {value}, as in {'.'.join(selector)}",
            # The selector of an object that exists cannot be changed.
            new=changed(manifest.data, (*place, str(key)), value),
        )


def _restarts(manifest: Manifest) -> Iterator[Finding]:
    """A restart policy that a workload of this kind does not take."""
    path: Path = (*TEMPLATES[manifest.document.kind], "spec")
    spec = manifest.document.part(*(str(step) for step in path))
    policy = spec.value("restartPolicy")
    is_job = manifest.document.kind in ("Job", "CronJob")
    if policy is not None and policy not in _POLICIES:
        return  # Another rule says that.
    if not is_job and policy not in (None, "Always"):
        new = changed(manifest.data, (*path, "restartPolicy"), "Always")
        seen = f"{policy} in a {manifest.document.kind}"
        yield _REFUSED.at(manifest, (*path, "restartPolicy"), seen=seen, expected="Always, or a Job", new=new)
    elif is_job and policy in (None, "Always") and any(map(_is_whole, spec.data.get("containers") or ())):
        right = "Never" if manifest.document.has(*(str(step) for step in path[:-2]), "podFailurePolicy") else "OnFailure"
        new = changed(manifest.data, (*path, "restartPolicy"), right)
        seen = "Always" if policy else "none, which is Always"
        yield _REFUSED.at(manifest, (*path, "restartPolicy"), seen=seen, expected=f"{right} in a Job", new=new)


def _is_whole(container: Any) -> bool:
    """Whether this is a container, and not a part of one that is laid over another file."""
    return isinstance(container, Mapping) and bool(container.get("image"))


LINTS = (Lint("L27", "fields of workloads that contradict each other", find_contradictions),)
