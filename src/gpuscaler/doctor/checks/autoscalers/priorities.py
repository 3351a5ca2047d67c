"""The ConfigMap with the priorities of groups, which Cluster Autoscaler's priority expander and gpuscaler read."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.programs import CLUSTER_AUTOSCALER, GPUSCALER, Program, programs
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import kubectl_apply, kubectl_patch
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import POLICY, Evidence
from gpuscaler.doctor.findings import ABSENCE, INFO, WARNING, Finding, Fix
from gpuscaler.model.durations import parse_duration
from gpuscaler.model.priorities.inverting import find_inverted, unmatched_patterns
from gpuscaler.model.priorities.priorities import Priorities, apply_priorities, parse_priorities
from gpuscaler.model.reading.errors import SettingsError
from gpuscaler.model.similar import nearest

NAME, KEY, GPUSCALER_NAMESPACE = "cluster-autoscaler-priority-expander", "priorities", "kube-system"
#: What the regular expressions of Go lack: look-around, references to groups, and groups that give nothing back.
_NOT_GO = re.compile(r"\(\?(=|!|<=|<!|>|P=|\()|\\[1-9]")
_SPOT = re.compile(r"(?<!non-)(?<!not-)(?<!no-)(spot|preemptible)", re.IGNORECASE)
_ON_DEMAND = re.compile(r"on.{0,2}demand|non-spot|not-spot|regular|(^|[^a-z])od([^a-z]|$)", re.IGNORECASE)
_UNUSED = "the file has no effect, and groups are chosen without priorities"
#: Labels of nodes with their group, and those that tell that it is a spot group.
_GROUPS = (
    ("eks.amazonaws.com/nodegroup", "eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/agentpool", "kubernetes.azure.com/scalesetpriority", "spot"),
    ("cloud.google.com/gke-nodepool", "cloud.google.com/gke-spot", "true"),
)


class _Readers(NamedTuple):
    """Those that read the ConfigMap: Cluster Autoscalers with the priority expander, and gpuscaler."""

    autoscalers: tuple[Program, ...]
    gpuscaler: bool

    @property
    def namespaces(self) -> dict[str, str]:
        """Where they read it, with one of those who do."""
        found = {GPUSCALER_NAMESPACE: GPUSCALER} if self.gpuscaler else {}
        return found | {program.flag("namespace", "kube-system"): CLUSTER_AUTOSCALER for program in self.autoscalers}

    def may_help(self, evidence: Evidence, namespace: str) -> bool:
        """Whether a command may give those a ConfigMap who read it in ``namespace``."""
        reading = [program for program in self.autoscalers if program.flag("namespace", "kube-system") == namespace]
        own = namespace == GPUSCALER_NAMESPACE and evidence.policy is not None
        return own or any(may_help(evidence, program.namespace, within=namespace) for program in reading)


def _readers(evidence: Evidence, known: tuple[Program, ...]) -> _Readers:
    autoscalers = tuple(
        program for program in known if program.name == CLUSTER_AUTOSCALER and "priority" in program.flag("expander").split(",")
    )
    return _Readers(autoscalers, evidence.policy is not None or any(program.name == GPUSCALER for program in known))


def find_mistakes(evidence: Evidence) -> Iterable[Finding]:
    """D36: a ConfigMap of priorities with another name, namespace or key, or that cannot be parsed."""
    known = tuple(programs(evidence))
    readers = _readers(evidence, known)
    maps = [item for item in evidence.of("ConfigMap") if item.name == NAME]
    present = {item.namespace or "default" for item in maps}
    for item in maps:
        namespaces = readers.namespaces
        if namespaces and (item.namespace or "default") not in namespaces:
            yield _in_other_namespace(item, next(iter(sorted(namespaces))))
        elif not namespaces and any(program.name == CLUSTER_AUTOSCALER and program.runs for program in known):
            yield _unread(item)
        yield from _mistakes_in(item, go=bool(readers.autoscalers))
    for namespace, program in readers.namespaces.items():
        if namespace not in present:
            similar = [item for item in evidence.of("ConfigMap") if item.namespace == namespace and _is_meant(item)]
            if similar:
                yield _with_other_name(similar[0], safe=readers.may_help(evidence, namespace))
            elif program == CLUSTER_AUTOSCALER and not maps:
                yield from (_absent(of) for of in readers.autoscalers if of.flag("namespace", "kube-system") == namespace)


def _is_meant(item: Document) -> bool:
    text = item.pairs("data").get(KEY)
    close = "priority" in item.name or "priorities" in item.name or "expander" in item.name
    return text is not None and bool(close or nearest(item.name, [NAME], cutoff=0.7)) and _parse(text) is not None


def _parse(text: str) -> Priorities | None:
    try:
        return parse_priorities(text, NAME)
    except SettingsError:
        return None


def _in_other_namespace(item: Document, namespace: str) -> Finding:
    own = item.namespace or "default"
    # Who may write in one namespace must not decide what is bought for another.
    copy = f"then create one of this name in namespace {namespace}, with the key {KEY} only"
    fix = Fix(advice=f"{verify('the ConfigMap', own)}; {copy}, and delete this one if nothing else reads it")
    return Finding(
        "D36", WARNING, item.title, "metadata.namespace", item.namespace, f"{namespace}, where it is read", _UNUSED, fix, item.place
    )


def _with_other_name(item: Document, *, safe: bool) -> Finding:
    """A ConfigMap with priorities and another name, in the namespace where priorities are read."""
    # Only what is read: other keys may hold what no report shows.
    copy = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": item.namespace},
        "data": {KEY: item.pairs("data")[KEY]},
    }
    command = kubectl_apply("\n".join(f"{key}: {json.dumps(value)}" for key, value in copy.items()))
    advice = f"delete {item.name} then, if nothing else reads it"
    fix = Fix((command,), advice) if safe else Fix(advice=f"copy its key {KEY} to a ConfigMap {NAME}, if it is meant for this program")
    return Finding("D36", WARNING, item.title, "metadata.name", item.name, NAME, _UNUSED, fix, item.place)


def _unread(item: Document) -> Finding:
    return Finding(
        "D36",
        INFO,
        item.title,
        "metadata.name",
        "no Cluster Autoscaler with --expander=priority",
        "one that reads it",
        _UNUSED,
        Fix(advice="start Cluster Autoscaler with --expander=priority, or delete the ConfigMap"),
        item.place,
        relies_on=ABSENCE,
    )


def _absent(program: Program) -> Finding:
    return Finding(
        "D36",
        WARNING,
        program.workload.title,
        "spec.template.spec.containers[0].command[--expander]",
        f"priority, and no ConfigMap {NAME} in namespace {program.flag('namespace', 'kube-system')}",
        "such a ConfigMap, or another expander",
        "groups are chosen at random",
        Fix(advice=f"create it with the key {KEY}, such as 50: [.*spot.*] and 10: [.*], or set another expander"),
        program.workload.place,
        relies_on=ABSENCE,
    )


def _mistakes_in(item: Document, *, go: bool) -> Iterator[Finding]:
    data = item.pairs("data")
    text = data.get(KEY)
    if text is None:
        fix = Fix(advice=f"put the priorities under the key {KEY}")
        key, value = next(iter(data.items()), ("", ""))
        # Only priorities are printed: another text may be a secret.
        if len(data) == 1 and _parse(value) is not None:
            fix = Fix((kubectl_patch(item, {"data": {key: None, KEY: value}}),))
        seen = f"{', '.join(sorted(data)[:3])}" if data else "no keys"
        yield Finding("D36", WARNING, item.title, "data", seen, f"the key {KEY}", _UNUSED, fix, item.place)
        return
    try:
        priorities = parse_priorities(text, NAME)
    except SettingsError as error:
        for problem in error.problems:
            seen, _, expected = problem.message.partition(", expected ")
            line = f" (line {problem.line})" if problem.line else ""
            yield Finding(
                "D36",
                WARNING,
                item.title,
                f"data.{KEY}{f'.{problem.path}' if problem.path else ''}",
                seen.removeprefix("saw ") + line,
                expected or "numbers, each with a list of regular expressions",
                "the whole file is ignored: groups are chosen without priorities",
                Fix(advice="correct this line; keys are whole numbers, each once, and values are lists"),
                item.place,
            )
        return
    if go:
        for number, patterns in priorities.tiers:
            for pattern in patterns:
                if _NOT_GO.search(pattern):
                    yield _not_go(item, number, pattern)


def _not_go(item: Document, number: int, pattern: str) -> Finding:
    return Finding(
        "D36",
        WARNING,
        item.title,
        f"data.{KEY}.{number}",
        pattern,
        "a regular expression as Go has them: without look-ahead, look-behind and references to groups",
        "Cluster Autoscaler ignores the whole file, and chooses groups at random",
        Fix(advice="name the groups that are meant, and give the others a lower number"),
        item.place,
    )


def _of_gpuscaler(evidence: Evidence) -> tuple[Document, Priorities] | None:
    """The ConfigMap that gpuscaler reads, if it can be parsed."""
    item = evidence.find("ConfigMap", GPUSCALER_NAMESPACE, NAME)
    priorities = _parse(item.pairs("data").get(KEY, "")) if item is not None else None
    return None if item is None or priorities is None else (item, priorities)


def find_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """D36: patterns that match no pool of the run file, and pools that no pattern matches."""
    read = _of_gpuscaler(evidence)
    if read is None or evidence.policy is None or not evidence.policy.pools:
        return
    item, priorities = read
    names = sorted(pool.name for pool in evidence.policy.pools)
    for pattern in unmatched_patterns(evidence.policy, priorities):
        yield Finding(
            "D36",
            WARNING,
            item.title,
            f"data.{KEY}",
            f"{pattern}, which matches no pool",
            f"a pattern that matches one: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}",
            "the pools that are meant have no priority",
            Fix(advice="correct the pattern, or remove it"),
            item.place,
        )
    without = [name for name in names if priorities.of(name) is None]
    if without and len(without) < len(names):
        yield Finding(
            "D36",
            INFO,
            item.title,
            f"data.{KEY}",
            f"no pattern for {', '.join(without[:3])}{' …' if len(without) > 3 else ''}",
            "a pattern for each pool",
            "these pools are used only if no other pool is suitable",
            Fix(advice="add a pattern if that is not meant; .* with the lowest number matches all"),
            item.place,
        )


def find_inverted_names(evidence: Evidence) -> Iterable[Finding]:
    """D37: priorities whose patterns put on-demand groups before spot groups."""
    for item in evidence.of("ConfigMap"):
        priorities = _parse(item.pairs("data").get(KEY, "")) if item.name == NAME else None
        if priorities is not None and (better := _in_order(priorities)) != priorities:
            dear = next(number for number, patterns in priorities.tiers if _market(patterns) == "on-demand")
            cheap = next(number for number, patterns in reversed(priorities.tiers) if _market(patterns) == "spot")
            text = "".join(
                f"{number}:\n" + "".join(f"  - {json.dumps(pattern)}\n" for pattern in patterns) for number, patterns in better.tiers
            )
            yield Finding(
                "D37",
                WARNING,
                item.title,
                f"data.{KEY}",
                f"{dear} for on-demand groups, {cheap} for spot groups",
                "spot groups first: the highest number is used first",
                "machines are bought on demand although spot is to be had, often for three times the price",
                Fix((kubectl_patch(item, {"data": {KEY: text}}),)),
                item.place,
            )


def _market(patterns: tuple[str, ...]) -> str:
    if patterns and all(_SPOT.search(pattern) and not _ON_DEMAND.search(pattern) for pattern in patterns):
        return "spot"
    return "on-demand" if patterns and all(_ON_DEMAND.search(pattern) and not _SPOT.search(pattern) for pattern in patterns) else ""


def _in_order(priorities: Priorities) -> Priorities:
    """``priorities`` with spot before on-demand; tiers of neither keep their number."""
    places = [index for index, (_, patterns) in enumerate(priorities.tiers) if _market(patterns)]
    tiers = [priorities.tiers[index][1] for index in places]
    ordered = sorted(tiers, key=lambda patterns: _market(patterns) != "spot")
    by_place = dict(zip(places, ordered, strict=True))
    return Priorities(tuple((number, by_place.get(index, patterns)) for index, (number, patterns) in enumerate(priorities.tiers)))


def judge_priorities(text: str) -> tuple[tuple[Finding, ...], Priorities | None]:
    """What D36 and D37 say about priorities of Cluster Autoscaler outside of a ConfigMap; and their right order, if theirs is wrong."""
    item = Document({"kind": "ConfigMap", "metadata": {"name": NAME}, "data": {KEY: text}})
    findings = (*_mistakes_in(item, go=True), *find_inverted_names(Evidence(0.0, {"ConfigMap": (item,)})))
    priorities = _parse(text)
    better = _in_order(priorities) if priorities is not None else None
    return findings, better if better != priorities else None


def find_inverted_pools(evidence: Evidence) -> Iterable[Finding]:
    """D37: pools of the run file that come before cheaper ones."""
    if evidence.policy is None:
        return
    read = _of_gpuscaler(evidence)
    policy = apply_priorities(evidence.policy, read[1])[0] if read is not None else evidence.policy
    for sentence in find_inverted(policy):
        yield Finding(
            "D37",
            WARNING,
            read[0].title if read is not None else "pools of the run file",
            f"data.{KEY}" if read is not None else "priority",
            sentence,
            "the cheaper pool first: the highest number is used first",
            "each such machine costs more than it has to",
            Fix(advice="exchange the priorities, unless the more expensive machines are meant to be first"),
            read[0].place if read is not None else "",
        )


def find_slow_failover(evidence: Evidence) -> Iterable[Finding]:
    """D38: explains how long Cluster Autoscaler tries equal spot groups before it turns to others."""
    for program in programs(evidence):
        if program.name != CLUSTER_AUTOSCALER or "priority" not in program.flag("expander").split(","):
            continue
        item = evidence.find("ConfigMap", program.flag("namespace", "kube-system"), NAME)
        priorities = _parse(item.pairs("data").get(KEY, "")) if item is not None else None
        equal = _equal_spot_groups(evidence, program, priorities) if priorities is not None else 0
        wait = _duration(program.flag("max-node-provision-time"), 15 * 60)
        pause = _duration(program.flag("initial-node-group-backoff-duration"), 5 * 60)
        if equal > 1 and wait * equal > pause:
            yield Finding(
                "D38",
                INFO,
                program.workload.title,
                "spec.template.spec.containers[0].command[--max-node-provision-time]",
                f"{wait / 60:g} minutes for each of {equal} equal spot groups, and a pause of {pause / 60:g} minutes after a failure",
                "a product below the pause, or a priority of its own for each group",
                "while spot is short, the first group is tried again before the last one failed: on-demand groups may never get their turn",
                Fix(advice="give each spot group a priority of its own and shorten --max-node-provision-time, or let gpuscaler buy"),
                program.workload.place,
            )


def _equal_spot_groups(evidence: Evidence, program: Program, priorities: Priorities) -> int:
    """The largest number of spot groups with one priority, as far as flags and labels of nodes show them."""
    names = {value.split(":", 2)[2] for value in program.flags.get("nodes", ()) if value.count(":") >= 2}
    spot = {name for name in names if _SPOT.search(name)}
    for node in evidence.of("Node"):
        labels = node.labels
        spot |= {labels[group] for group, key, value in _GROUPS if group in labels and labels.get(key) == value}
    numbers = [priorities.of(name) for name in spot]
    return max((numbers.count(number) for number in numbers), default=0)


def _duration(text: str, default: float) -> float:
    try:
        return parse_duration(text) if text else default
    except ValueError:
        return default


CHECKS = (
    Check("D36", "the ConfigMap of priorities", ("ConfigMap", "Deployment"), find_mistakes, on_files=True),
    Check("D36", "patterns of priorities", ("ConfigMap", POLICY), find_unmatched),
    Check("D37", "priorities of spot and on-demand groups", ("ConfigMap",), find_inverted_names, on_files=True),
    Check("D37", "priorities of pools against their prices", ("ConfigMap", POLICY), find_inverted_pools),
    Check("D38", "the time until Cluster Autoscaler turns to on-demand groups", ("ConfigMap", "Deployment"), find_slow_failover),
)
