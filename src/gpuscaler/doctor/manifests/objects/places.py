"""Pods with GPUs that no group of the same files takes: too many GPUs, a taint, a label; and groups that no device plugin runs on."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.groups.groups import Group, Taint, groups_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.well_known import ARRIVING_TAINT, INSTANCE_TYPE_LABELS

_NOWHERE = Mistake("L15", CRITICAL, "the pods stay pending, and no machine is bought for them")
_UNSEEN = Mistake("L15", CRITICAL, "the GPUs of its nodes are never registered, and no pod can use them")
_IDLE = Mistake("L15", WARNING, "the pods take room on machines with GPUs, and keep them from being removed")
_GPU = "nvidia.com/gpu"
#: Labels that clouds and programs set.
_SET_BY_OTHERS = ("kubernetes.io", "k8s.io", "amazonaws.com", "eksctl.io", "azure.com", "nvidia.com", "karpenter", "google.com", "lambda")


def find_homeless(manifests: Manifests) -> Iterable[Finding]:
    """L15: pods with GPUs that no group of the files has room for."""
    groups = [group for group in groups_of(manifests) if any(count or 0 for count in group.gpus(manifests.machines))]
    yield from _closed_to_plugins([*_plugins(manifests)], groups)
    for manifest in manifests.of(*TEMPLATES):
        template = template_of(manifest.document)
        if template is None:
            continue
        wanted = _gpus(template)
        start = TEMPLATES[manifest.document.kind]
        if wanted and groups:
            yield from _homeless(manifests, manifest, template, groups)
        elif not wanted and manifest.document.kind != "DaemonSet":
            yield from _idle(manifest, template, (*start, "spec", "tolerations"))


def _plugins(manifests: Manifests) -> Iterator[tuple[Manifest, Document]]:
    """The DaemonSets of device plugins that register GPUs of NVIDIA, and their pods."""
    for manifest in manifests.of("DaemonSet"):
        template = template_of(manifest.document)
        if template is not None and any("nvidia/k8s-device-plugin" in item.text("image") for _, item in containers_of(template)):
            yield manifest, template


def _closed_to_plugins(plugins: list[tuple[Manifest, Document]], groups: list[Group]) -> Iterator[Finding]:
    """Groups whose nodes the plugins of the files choose, but whose taints none of these tolerates."""
    for group in groups:
        choosing = [(manifest, template) for manifest, template in plugins if _may_choose(template, group)]
        if choosing and all(_untolerated(template, group) for _, template in choosing):
            manifest, template = choosing[0]
            yield _UNSEEN.at(
                manifest,
                ("spec", "template", "spec", "tolerations"),
                seen=f"none of {_untolerated(template, group)}",
                expected=f"a toleration of every taint of group {group.name}, which has GPUs",
                advice="add the toleration to the DaemonSet",
            )


def _may_choose(template: Document, group: Group) -> bool:
    """Whether nothing that the files say of the group's nodes contradicts selector and affinity."""
    known = {key: {value} for key, value in group.texts_at(group.labels).items()}
    known |= {label: {name for _, name in group.types} for label in INSTANCE_TYPE_LABELS}
    known |= {"kops.k8s.io/instancegroup": {group.name}} if group.maker == "kops" else {}
    if any(key in known and value not in known[key] for key, value in template.pairs("spec", "nodeSelector").items()):
        return False
    terms = template.part("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution").parts("nodeSelectorTerms")
    wanted = [
        [(item.text("key"), item.texts("values")) for item in term.parts("matchExpressions") if item.text("operator") == "In"]
        for term in terms
    ]
    return not wanted or any(all(key not in known or known[key] & set(values) for key, values in term) for term in wanted)


def _untolerated(template: Document, group: Group) -> Taint | None:
    for taint in group.taints:
        passing = taint.effect == "PreferNoSchedule" or taint.key == ARRIVING_TAINT
        tolerations = (item for item in template.parts("spec", "tolerations") if item.text("effect") in ("", taint.effect))
        if not passing and not any(_tolerates(item, taint.key, taint.value) for item in tolerations):
            return taint
    return None


def _gpus(template: Document) -> int:
    """The GPUs of the largest container and of all together."""
    total = 0
    for path, container in containers_of(template):
        amount = container.value("resources", "limits", _GPU)
        number = int(amount) if str(amount).isdecimal() and len(str(amount)) < 6 else 0
        total = max(total, number) if "initContainers" in path else total + number
    return total


def _homeless(manifests: Manifests, manifest: Manifest, template: Document, groups: list[Group]) -> Iterator[Finding]:
    reasons = [_reason(manifests, template, group) for group in groups]
    if all(reasons):
        field, seen, expected = next(reason for reason in reasons if reason is not None)
        start = TEMPLATES[manifest.document.kind]
        path: Path = (*start, *field)
        if field[-1] == _GPU:
            best = max(count or 0 for group in groups for count in group.gpus(manifests.machines))
            expected = f"at most {best}, what the machines of the groups in these files have"
        yield _NOWHERE.at(manifest, path, seen=seen, expected=expected, advice="correct the pod or the group")


def _reason(manifests: Manifests, template: Document, group: Group) -> tuple[Path, str, str] | None:
    """Why the group does not take the pod: the field, what it has, and what it should."""
    wanted, offered = _gpus(template), max(count or 0 for count in group.gpus(manifests.machines))
    if wanted > offered:
        index = next((index for index, item in enumerate(template.parts("spec", "containers")) if item.has("resources", "limits", _GPU)), 0)
        return ("spec", "containers", index, "resources", "limits", _GPU), str(wanted), f"at most {offered}"
    labels = group.texts_at(group.labels)
    for key, value in template.pairs("spec", "nodeSelector").items():
        if not any(part in key for part in _SET_BY_OTHERS) and labels.get(key) != value:
            have = f"{key}: {labels[key]}" if key in labels else f"no label {key}"
            return ("spec", "nodeSelector", key), value, f"a label of group {group.name}, which has {have}"
    tolerations = template.parts("spec", "tolerations")
    for taint in group.taints:
        if (
            taint.effect != "PreferNoSchedule"
            # New machines have gpuscaler's taint only until it opens them for the pods that they were bought for.
            and taint.key not in (_GPU, ARRIVING_TAINT)
            and not any(_tolerates(item, taint.key, taint.value) for item in tolerations)
        ):
            return ("spec", "tolerations"), f"none of {taint}", f"a toleration of the taint of group {group.name}"
    # The admission controller ExtendedResourceToleration adds that of the resource itself, where it runs: not in EKS.
    own = next((taint for taint in group.taints if taint.key == _GPU and taint.effect != "PreferNoSchedule"), None)
    if own is not None and not any(_tolerates(item, own.key, own.value) for item in tolerations):
        return ("spec", "tolerations"), f"none of {own}", f"a toleration of the taint of group {group.name}"
    return None


def _tolerates(toleration: Document, key: str, value: str) -> bool:
    if toleration.text("operator") == "Exists":
        return toleration.text("key") in ("", key)
    return toleration.text("key") == key and toleration.text("value") == value


def _idle(manifest: Manifest, template: Document, path: Path) -> Iterator[Finding]:
    """Pods that tolerate GPU machines, choose them, and use no GPU."""
    for index, toleration in enumerate(template.parts("spec", "tolerations")):
        selects = any("gpu" in key or "accelerator" in key for key in template.pairs("spec", "nodeSelector"))
        uses_devices = any("/" in str(name) for _, item in containers_of(template) for name in item.part("resources", "limits").data)
        if toleration.text("key") == _GPU and selects and not uses_devices and not template.has("spec", "resourceClaims"):
            advice = f"add {_GPU} to resources.limits, or remove toleration and node selector"
            yield _IDLE.at(
                manifest, (*path, index), seen="a toleration of GPU machines and no GPU", expected=f"a limit of {_GPU}", advice=advice
            )


LINTS = (Lint("L15", "pods that no group of the files takes", find_homeless),)
