"""Tags that describe the nodes of an empty group: taints in a form that is ignored, or that nodes do not have."""

import re
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.aws.account import AwsGroup, aws_check, groups_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix
from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.taints import Taint

_TAINT = "k8s.io/cluster-autoscaler/node-template/taint/"
#: The longest first, since one ends with another.
_EFFECTS = ("PreferNoSchedule", "NoSchedule", "NoExecute")
_IGNORED = "the tag is ignored, so an empty group is planned without it: pods are bought machines that they cannot use, or none"
#: ``key=value`` with or without an effect, as taints are written elsewhere.
_WRITTEN = re.compile(r"(?P<key>[^=:]+)=(?P<value>[^=:]*)(?::(?P<effect>\w+))?")


def find_malformed(evidence: Evidence) -> Iterable[Finding]:
    """D8: tags of the node template that cannot be understood, and taints that differ from those of nodes."""
    nodes = _taints_of_nodes(evidence)
    for group in groups_of(evidence):
        if not (group.scaled or group.member):
            continue
        real = nodes.get(group.key, ()) or tuple(
            Taint(taint.text("key"), taint.text("value"), taint.text("effect")) for taint in group.document.parts("NodeTaints")
        )
        for mistake in group.document.parts("TagMistakes"):
            key, value = mistake.text("Key"), mistake.text("Value")
            taint = key.startswith(_TAINT)
            yield Finding(
                "D8",
                CRITICAL if taint else WARNING,
                group.title,
                f"Tags[{key}]",
                value or "an empty value",
                mistake.text("Expected"),
                _IGNORED,
                _rewritten(group, key, value, real) if taint else Fix(advice="correct the tag, or remove it"),
            )
        yield from _other_keys(group, real)


def _rewritten(group: AwsGroup, key: str, value: str, real: tuple[Taint, ...]) -> Fix:
    """The same taint as VALUE:EFFECT; the real one, if nodes or templates show it."""
    name = key.removeprefix(_TAINT)
    effect = next((candidate for candidate in _EFFECTS if value.lower().endswith(candidate.lower())), "")
    written = _WRITTEN.fullmatch(value)
    if written is not None and is_qualified_name(written["key"].strip()):
        name, text = written["key"].strip(), written["value"]
    else:
        text = value.rpartition(":")[0] if ":" in value else ("" if effect else value)
    actual = next((taint for taint in real if taint.key == name), None)
    if actual is not None:
        text, effect = actual.value, actual.effect
    if not is_qualified_name(name) or not is_label_value(text):
        return Fix(advice="rewrite the tag as VALUE:EFFECT such as true:NoSchedule, with the taint's key in the tag's key")
    renamed = (group.untag_command(key),) if f"{_TAINT}{name}" != key else ()
    return Fix((*renamed, group.tag_command({f"{_TAINT}{name}": f"{text}:{effect or 'NoSchedule'}"})))


def _other_keys(group: AwsGroup, real: tuple[Taint, ...]) -> Iterator[Finding]:
    """Hard taints of tags that no node has, in a group whose nodes have taints with other keys."""
    ignored = {mistake.text("Key") for mistake in group.document.parts("TagMistakes")}
    promised = {key.removeprefix(_TAINT) for key in group.tags if key.startswith(_TAINT) and key not in ignored}
    actual = {taint.key for taint in real if not taint.key.startswith(("node.kubernetes.io/", "gpuscaler.io/"))}
    for name in sorted(promised - actual) if actual and not promised & actual else ():
        commands = [group.untag_command(f"{_TAINT}{name}")]
        commands += [group.tag_command({f"{_TAINT}{taint.key}": f"{taint.value}:{taint.effect}"}) for taint in real if taint.key in actual]
        yield Finding(
            "D8",
            CRITICAL,
            group.title,
            f"Tags[{_TAINT}{name}]",
            f"a taint {name}",
            f"the taint that nodes have: {', '.join(sorted(actual))}",
            "an empty group is planned with a taint that its nodes do not have: pods that tolerate the real one get no machine",
            Fix(tuple(commands)),
        )


def _taints_of_nodes(evidence: Evidence) -> dict[tuple[str, str], tuple[Taint, ...]]:
    """The taints that all nodes of a group have, by region and group."""
    nodes = {node.provider_id.rpartition("/")[2]: node for node in evidence.cluster.nodes.values() if node.provider_id.startswith("aws://")}
    taints: dict[tuple[str, str], tuple[Taint, ...]] = {}
    for group in groups_of(evidence) if nodes else ():
        idents = [instance.text("InstanceId") for instance in group.document.parts("Instances")]
        found = [nodes[ident].taints for ident in idents if ident in nodes]
        if found:
            taints[group.key] = tuple(taint for taint in found[0] if all(taint in others for others in found))
    return taints


CHECKS = (aws_check("D8", "tags that describe nodes", (), find_malformed),)
