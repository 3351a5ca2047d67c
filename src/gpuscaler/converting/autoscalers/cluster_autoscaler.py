"""Cluster Autoscaler's flags that have a counterpart in the run file."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuscaler.converting.autoscalers import clouds
from gpuscaler.converting.autoscalers.cluster_autoscaler_flags import BOOLEANS, DIFFERING_DEFAULTS, answer_of
from gpuscaler.converting.autoscalers.draft import OWN, SAME, UNSUPPORTED, Answer, Draft, UnusableError, duration, is_true, whole
from gpuscaler.converting.autoscalers.flags import Flag, effective
from gpuscaler.model.durations import parse_duration
from gpuscaler.model.labels import is_qualified_name, label_value_of

#: How long Cluster Autoscaler waits without the flag.
_UNREADY: Final = "20m"
#: ``unready_after`` is never.
_NEVER: Final = "0s"
_UNREADY_PODS: Final = (
    "the machine is ended with the pods that are still on it, one of a pool in 10 minutes; Cluster Autoscaler also waited until they fit "
    "elsewhere"
)
_PER_POOL: Final = "it counts in each pool, not in all together, and nodes that are not Ready count, too"
_NO_REMOVAL: Final[Mapping[str, Any]] = {"nodes": 0}
#: Budgets that are the defaults of flags. The first flag is the one of today, others set the same.
_BUDGETS: Final[Mapping[tuple[str, ...], Mapping[str, Any]]] = {
    ("max-scale-down-parallelism", "max-empty-bulk-delete"): {"nodes": 10},
    ("max-drain-parallelism",): {"nodes": 1, "reasons": ["consolidation"]},
}
#: Flags that may be given several times, with what tells entries apart.
_LISTS: Final[Mapping[str, Callable[[str], str]]] = {
    **dict.fromkeys(
        (
            *("nodes", "node-group-auto-discovery", "startup-taint", "ignore-taint", "status-taint"),
            *("balancing-ignore-label", "balancing-label", "bypassed-scheduler-names"),
        ),
        str,
    ),
    "gpu-total": lambda value: value.partition(":")[0],
}
_NODES: Final = re.compile(r"(\d{1,9}):(\d{1,9}):(.+)", re.ASCII)
_GPUS: Final = re.compile(r"([^:]+):(\d{1,9}):(\d{1,9})", re.ASCII)
#: How Cluster Autoscaler's clouds are called here; others are not driven.
_CLOUDS: Final = {"aws": "aws", "azure": "azure"}
_BY_PREFIX: Final = {"asg": "aws", "label": "azure"}
#: What Cluster Autoscaler takes without the flag.
_DEFAULT_CLOUD: Final = "gce"


def cloud_of(flags: list[Flag]) -> tuple[str, str]:
    """(the cloud as the run file calls it, empty if gpuscaler does not drive it; the cloud as Cluster Autoscaler calls it)."""
    stated = next((flag.value for flag in reversed(flags) if flag.name == "cloud-provider"), "")
    if not stated:
        prefixes = (flag.value.partition(":")[0] for flag in flags if flag.name == "node-group-auto-discovery")
        stated = next((_BY_PREFIX[prefix] for prefix in prefixes if prefix in _BY_PREFIX), _DEFAULT_CLOUD)
    return _CLOUDS.get(stated, ""), stated


def carry(flags: list[Flag], draft: Draft, places: clouds.Places) -> None:
    """Write ``flags`` into ``draft``, whose cloud is known. ``places`` is what the container says about the account."""
    flags, overridden = effective(flags, _LISTS)
    by_name = {flag.name: flag for flag in flags}
    for flag, by in overridden:
        draft.overridden(flag, by)
    clouds.begin(draft, places, cluster=by_name["cluster-name"].value if "cluster-name" in by_name else "")
    # Flags that turn something off come first: they count, whatever others say about it.
    for flag in sorted(flags, key=lambda flag: not flag.name.endswith("-enabled")):
        if flag.name in ("cloud-provider", "cluster-name"):
            draft.carried(flag, "cloud" if flag.name == "cloud-provider" else "the name of the cluster")
            continue
        carry_one = _CARRIED.get(flag.name)
        known = answer_of(flag.name, _plain(flag))
        if carry_one is None or (known is not None and flag.name in BOOLEANS):
            draft.answered(flag, known or Answer(UNSUPPORTED, "gpuscaler does not know this flag of Cluster Autoscaler"))
        elif flag.is_placeholder and flag.name not in _WITH_PLACEHOLDERS:
            draft.check(f"the value of {flag} is filled in elsewhere, so it is not carried over")
        else:
            try:
                carry_one(flag, draft)
            except UnusableError as error:
                draft.check(f"{flag} is not carried over: {error}")
    _carry_defaults(by_name, draft)
    clouds.finish(draft)


def _carry_defaults(by_name: Mapping[str, Flag], draft: Draft) -> None:
    """Write the defaults of flags that are not set, and note those that gpuscaler cannot have."""
    if "scale-down-unready-time" not in by_name and "unready_after" not in draft.every:
        draft.every["unready_after"] = _UNREADY
        became = f"unready_after: {_UNREADY}, its default; gpuscaler's own is 45m"
        draft.carried("--scale-down-unready-time, which is not set,", became, _UNREADY_PODS)
    for names, budget in _BUDGETS.items():
        if not any(name in by_name for name in names) and _NO_REMOVAL not in draft.every.get("budgets", ()):
            draft.every.setdefault("budgets", []).append(dict(budget))
            draft.carried(f"--{names[0]}, which is not set,", f"a budget of {budget['nodes']}, its default", _PER_POOL)
    for name, value in DIFFERING_DEFAULTS.items():
        if name not in by_name and (answer := answer_of(name, value)) is not None:
            draft.default(name, value, answer)


def _plain(flag: Flag) -> str:
    """The value, with "true" and "false" however a boolean flag of Go is written."""
    try:
        return str(is_true(flag.value)).lower() if flag.name in BOOLEANS else flag.value
    except UnusableError:
        return flag.value


def _every(key: str, read: Callable[[str], Any]) -> Callable[[Flag, Draft], None]:
    """A flag that becomes a setting of every pool."""

    def carry_flag(flag: Flag, draft: Draft) -> None:
        draft.every[key] = read(flag.value)
        draft.carried(flag, f"{key}: {draft.every[key]} of every pool", "the tags of a group take precedence, as before")

    return carry_flag


def _limit(flag: Flag, draft: Draft) -> None:
    machines = whole(flag.value)
    if machines == 0:
        draft.answered(flag, Answer(SAME, "0 is no limit"))
        return
    draft.limits["machines"] = machines
    draft.carried(flag, f"limits.machines: {machines}", "machines of pools count, and no other nodes")


def _gpus(flag: Flag, draft: Draft) -> None:
    match = _GPUS.fullmatch(flag.value)
    if match is None:
        raise UnusableError("expected TYPE:MIN:MAX")
    # Limits of types add up to one of all GPUs.
    draft.limits["gpus"] = draft.limits.get("gpus", 0) + int(match[3])
    least = f"; there is no minimum of {match[2]}, which spare of a pool can keep" if int(match[2]) else ""
    draft.carried(flag, f"limits.gpus: {draft.limits['gpus']}", f"GPUs of all types together{least}")


def _cutoff(flag: Flag, draft: Draft) -> None:
    negative = flag.value.startswith("-")
    cutoff = whole(flag.value.removeprefix("-")) * (-1 if negative else 1)
    draft.top["priority_cutoff"] = cutoff
    draft.carried(flag, f"priority_cutoff: {cutoff}")


def _provision(flag: Flag, draft: Draft) -> None:
    time = duration(flag.value, least=0.01)
    draft.pace |= {"register_timeout": time, "ready_timeout": time}
    draft.carried(flag, f"pace.register_timeout and pace.ready_timeout: {time}")


def _scan(flag: Flag, draft: Draft) -> None:
    draft.pace["resync"] = duration(flag.value, least=0.01)
    draft.carried(flag, f"pace.resync: {draft.pace['resync']}", "a pod that becomes unschedulable does not wait for it")


def _inactivity(flag: Flag, draft: Draft) -> None:
    draft.http["alive_within"] = duration(flag.value, least=0.01)
    draft.carried(flag, f"http.alive_within: {draft.http['alive_within']}")


def _budget(reason: str) -> Callable[[Flag, Draft], None]:
    def carry_flag(flag: Flag, draft: Draft) -> None:
        budget: dict[str, Any] = {"nodes": whole(flag.value)} | ({"reasons": [reason]} if reason else {})
        draft.every.setdefault("budgets", []).append(budget)
        draft.carried(flag, f"a budget of every pool, {budget['nodes']} at once", _PER_POOL)

    return carry_flag


def _no_removal(flag: Flag, draft: Draft) -> None:
    if is_true(flag.value):
        return
    draft.every |= {"budgets": [dict(_NO_REMOVAL)], "unready_after": _NEVER}
    text = "machines that never become ready, or that the cloud takes, are still ended"
    draft.carried(flag, f"a budget of 0 machines and unready_after: {_NEVER} of every pool", text)


def _no_unready(flag: Flag, draft: Draft) -> None:
    if not is_true(flag.value):
        draft.every["unready_after"] = _NEVER
        draft.carried(flag, f"unready_after: {_NEVER} of every pool, which is never")


def _unready(flag: Flag, draft: Draft) -> None:
    if draft.every.get("unready_after") == _NEVER:
        draft.answered(flag, Answer(SAME, "another flag says that no machine is ended because its node is not Ready"))
        return
    time = duration(flag.value)
    if parse_duration(time) == 0:
        raise UnusableError("expected more than 0 s, since unready_after: 0s is never; without the key it is 45m")
    draft.every["unready_after"] = time
    draft.carried(flag, f"unready_after: {time} of every pool", f"the tags of a group take precedence, as before; {_UNREADY_PODS}")


def _startup(flag: Flag, draft: Draft) -> None:
    if not is_qualified_name(flag.value):
        raise UnusableError("expected the key of a taint")
    taints = draft.every.setdefault("startup_taints", [])
    taints += [taint for effect in ("NoSchedule", "NoExecute") if (taint := f"{flag.value}:{effect}") not in taints]
    draft.carried(flag, "startup_taints of every pool", "with both effects that keep pods off")


def _schedulers(flag: Flag, draft: Draft) -> None:
    names = [name.strip() for name in flag.value.split(",") if name.strip()]
    if not names or not all(name == label_value_of(name, "") for name in names):
        raise UnusableError("expected names of schedulers")
    draft.top["schedulers"] = list(dict.fromkeys([*draft.top.get("schedulers", ["default-scheduler"]), *names]))
    draft.carried(flag, f"schedulers: {', '.join(draft.top['schedulers'])}")


def _expander(flag: Flag, draft: Draft) -> None:
    names = [name.strip() for name in flag.value.split(",")]
    if "priority" in names:
        draft.answered(
            flag, Answer(SAME, "the ConfigMap cluster-autoscaler-priority-expander in kube-system is read as it is: it has to stay")
        )
    elif "grpc" in names:
        draft.answered(
            flag,
            Answer(UNSUPPORTED, "no other program is asked; priority of a pool, or the ConfigMap of the priority expander, sets an order"),
        )
    else:
        draft.answered(flag, Answer(OWN, "the mix of machines is solved for the least cost"))


def _nodes(flag: Flag, draft: Draft) -> None:
    match = _NODES.fullmatch(flag.value)
    if match is None or int(match[1]) > int(match[2]):
        raise UnusableError("expected MIN:MAX:NAME with a MIN that is not above MAX")
    clouds.name_group(draft, flag, match[3].strip(), least=int(match[1]), most=int(match[2]))


def _discovery(flag: Flag, draft: Draft) -> None:
    clouds.discover(draft, flag)


_CARRIED: Final[Mapping[str, Callable[[Flag, Draft], None]]] = {
    "nodes": _nodes,
    "node-group-auto-discovery": _discovery,
    "scale-down-unneeded-time": _every("idle_after", duration),
    "scale-down-unready-time": _unready,
    "scale-down-enabled": _no_removal,
    "scale-down-unready-enabled": _no_unready,
    "max-nodes-total": _limit,
    "gpu-total": _gpus,
    "expendable-pods-priority-cutoff": _cutoff,
    "max-node-provision-time": _provision,
    "scan-interval": _scan,
    "max-inactivity": _inactivity,
    "max-empty-bulk-delete": _budget("idle"),
    "max-scale-down-parallelism": _budget(""),
    "max-drain-parallelism": _budget("consolidation"),
    "startup-taint": _startup,
    "ignore-taint": _startup,
    "bypassed-scheduler-names": _schedulers,
    "expander": _expander,
}
_WITH_PLACEHOLDERS: Final = frozenset({"nodes", "node-group-auto-discovery"})


def carried_flags() -> frozenset[str]:
    """The names of the flags that have a counterpart for some value."""
    return frozenset({"cloud-provider", "cluster-name", *_CARRIED})
