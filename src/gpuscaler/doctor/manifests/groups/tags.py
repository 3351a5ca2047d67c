"""Tags by which Cluster Autoscaler finds groups, and knows the labels and taints of their machines before there are any."""

import re
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, renamed
from gpuscaler.doctor.manifests.groups.groups import Group, Taint, groups_of, sizes_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifests

_PREFIX = "k8s.io/cluster-autoscaler/"
_ENABLED, _TEMPLATE = f"{_PREFIX}enabled", f"{_PREFIX}node-template/"
_LABEL, _TAINT = f"{_TEMPLATE}label/", f"{_TEMPLATE}taint/"
_VALUE = re.compile(r"[^:]*:(NoSchedule|PreferNoSchedule|NoExecute)")
_ACCELERATOR = "k8s.amazonaws.com/accelerator"

_IGNORED = Mistake("L11", CRITICAL, "Cluster Autoscaler ignores the tag: it buys machines that pods without the toleration do not fit")
_WRONG = Mistake("L11", CRITICAL, "from zero, an autoscaler buys machines that its pods do not fit, or none")
_LACKS = Mistake(
    "L11", WARNING, "from zero, an autoscaler buys none for pods that select them, or too many for pods that do not tolerate them"
)
_OTHERS = Mistake("L11", WARNING, "the autoscaler of another cluster in the account takes the group for its own")
_UNFOUND = Mistake("L11", WARNING, "an autoscaler that discovers groups by tags does not find it, and never scales it")
_EARLY = Mistake("L11", WARNING, "Cluster Autoscaler takes a new node for ready before it has GPUs, and buys a second one")


def find_wrong_tags(manifests: Manifests) -> Iterable[Finding]:
    """L11: tags of groups for autoscalers that do not agree with the group."""
    clusters = {item.document.name for item in manifests.of("Cluster") if item.document.part("spec", "clusterAutoscaler").flag("enabled")}
    for group in groups_of(manifests):
        if group.maker == "acs":
            continue
        tags = group.texts_at(group.tags)
        yield from _taint_tags(group, tags)
        yield from _label_tags(group, tags)
        yield from _discovery(group, tags)
        if _ENABLED in tags:
            yield from _missing(group, tags)
            yield from _accelerator(manifests, group)
        if group.maker == "kops":
            yield from _kops(manifests, group, tags, clusters)


def _taint_tags(group: Group, tags: dict[str, str]) -> Iterator[Finding]:
    taints = {taint.key: taint for taint in group.taints}
    for tag, text in tags.items():
        if not tag.startswith(_TAINT):
            continue
        path, key = (*group.tags, tag), tag.removeprefix(_TAINT)
        if not _VALUE.fullmatch(text):
            meant = taints.get(key) or taints.get(text.partition("=")[0]) or (group.taints[0] if len(group.taints) == 1 else None)
            yield _malformed(group, tag, text, meant)
        elif key in taints and text != _tag_value(taints[key]):
            value = _tag_value(taints[key])
            new = changed(group.manifest.data, path, value)
            yield _WRONG.at(group.manifest, path, seen=text, expected=f"{value}, as the taint of the group", new=new)
        elif key not in taints and (group.taints or group.maker == "eksctl"):
            expected = (
                f"one of the taints of the group: {', '.join(map(str, group.taints))}" if group.taints else "no such tag: no taint is set"
            )
            yield _WRONG.at(
                group.manifest, path, seen=f"a tag of the taint {key}", expected=expected, advice="correct the taint or the tag"
            )


def _tag_value(taint: Taint) -> str:
    return f"{taint.value}:{taint.effect}"


def _malformed(group: Group, tag: str, text: str, meant: Taint | None) -> Finding:
    path = (*group.tags, tag)
    new, expected = None, "a value and an effect: true:NoSchedule"
    if meant is not None:
        right = f"{_TAINT}{meant.key}"
        expected = f"{_tag_value(meant)} in {right}, as the taint of the group"
        new = renamed(group.manifest.data, path, right) if right != tag else group.manifest.data
        new = changed(new, (*group.tags, right), _tag_value(meant))
    return _IGNORED.at(group.manifest, path, seen=text, expected=expected, new=new)


def _label_tags(group: Group, tags: dict[str, str]) -> Iterator[Finding]:
    labels = group.texts_at(group.labels)
    for tag, text in tags.items():
        key = tag.removeprefix(_LABEL)
        if tag.startswith(_LABEL) and key in labels and labels[key] != text:
            path = (*group.tags, tag)
            new = changed(group.manifest.data, path, labels[key])
            yield _WRONG.at(group.manifest, path, seen=text, expected=f"{labels[key]}, as the label of the group", new=new)


def _discovery(group: Group, tags: dict[str, str]) -> Iterator[Finding]:
    """The tag with the name of the cluster."""
    owners = [tag for tag in tags if tag.startswith(_PREFIX) and tag != _ENABLED and not tag.startswith(_TEMPLATE)]
    cluster = group.manifest.document.text("metadata", "name") if group.maker != "kops" else ""
    cluster = cluster or group.manifest.document.labels.get("kops.k8s.io/cluster", "")
    if _ENABLED in tags and not owners:
        right = f"{_PREFIX}{cluster or 'NAME-OF-THE-CLUSTER'}"
        new = changed(group.manifest.data, (*group.tags, right), "owned") if cluster else None
        yield _OTHERS.at(group.manifest, (*group.tags, _ENABLED), seen=f"{_ENABLED} alone", expected=f"{right}, too", new=new)
    elif cluster and owners and f"{_PREFIX}{cluster}" not in owners:
        path = (*group.tags, owners[0])
        right = f"{_PREFIX}{cluster}"
        new = renamed(group.manifest.data, path, right)
        yield _UNFOUND.at(group.manifest, path, seen=owners[0], expected=f"{right}, the name of the cluster", new=new)


def _missing(group: Group, tags: dict[str, str]) -> Iterator[Finding]:
    """Labels and taints of a group that begins at zero without tags. kOps and EKS set these tags themselves."""
    if group.maker != "eksctl" or sizes_of(group)[0] > 0 or group.document.flag("propagateASGTags"):
        return
    wanted = {f"{_LABEL}{key}": value for key, value in group.texts_at(group.labels).items()}
    # A tag of a taint that is malformed is a finding of its own, and its patch makes this one.
    if all(_VALUE.fullmatch(text) for tag, text in tags.items() if tag.startswith(_TAINT)):
        wanted |= {f"{_TAINT}{taint.key}": _tag_value(taint) for taint in group.taints}
    lacking = {tag: value for tag, value in wanted.items() if tag not in tags}
    if lacking:
        new = group.manifest.data
        for tag, value in lacking.items():
            new = changed(new, (*group.tags, tag), value)
        names = ", ".join(tag.removeprefix(_TEMPLATE) for tag in lacking)
        expected = f"{_TEMPLATE}{next(iter(lacking))[len(_TEMPLATE) :]} and so on, or propagateASGTags: true"
        yield _LACKS.at(group.manifest, group.tags, seen=f"no tags of {names}", expected=expected, new=new)


def _accelerator(manifests: Manifests, group: Group) -> Iterator[Finding]:
    if group.maker == "eksctl" and any(group.gpus(manifests.machines)) and _ACCELERATOR not in group.texts_at(group.labels):
        new = changed(group.manifest.data, (*group.labels, _ACCELERATOR), "nvidia-gpu")
        if _LABEL + _ACCELERATOR not in group.texts_at(group.tags):
            new = changed(new, (*group.tags, _LABEL + _ACCELERATOR), "nvidia-gpu")
        yield _EARLY.at(group.manifest, group.labels, seen=f"no label {_ACCELERATOR}", expected="the label, with any value", new=new)


def _kops(manifests: Manifests, group: Group, tags: dict[str, str], clusters: set[str]) -> Iterator[Finding]:
    """Groups of kOps that nothing discovers. With spec.clusterAutoscaler of the cluster, kOps sets the tags."""
    least, greatest = sizes_of(group)
    cluster = group.manifest.document.labels.get("kops.k8s.io/cluster", "")
    if greatest <= least or not any(group.gpus(manifests.machines)) or any(tag.startswith(_PREFIX) for tag in tags) or cluster in clusters:
        return
    right = {_ENABLED: "true", f"{_PREFIX}{cluster or 'NAME-OF-THE-CLUSTER'}": "owned"}
    new = group.manifest.data
    for tag, value in right.items():
        new = changed(new, (*group.tags, tag), value)
    yield _UNFOUND.at(
        group.manifest,
        group.tags,
        seen=f"no {_ENABLED}",
        expected=f"{' and '.join(right)}, unless spec.clusterAutoscaler of the Cluster is enabled",
        new=new if cluster else None,
    )


LINTS = (Lint("L11", "tags for autoscalers", find_wrong_tags),)
