"""Flags of Cluster Autoscaler that it does not know, that contradict each other, or whose values it does not take."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from gpuscaler.doctor.documents import TEMPLATES, containers_of, template_of, without_tag
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, renamed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.objects.workloads import manifest_path
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.similar import nearest

_STOPS = Mistake("L16", CRITICAL, "the autoscaler does not start")
_NEW = Mistake("L16", WARNING, "the autoscaler does not start with a flag that it does not know, unless it is newer than this list")
_SHARE = Mistake("L16", WARNING, "a share outside of 0 to 1 takes every node for idle, or none")
_TWICE = Mistake("L16", WARNING, "which of the sizes counts is left to chance")
_BOTH = Mistake("L16", INFO, "a group that both name has the sizes of --nodes, and not its own")
_GROUPS: Final = ("nodes", "node-group-auto-discovery")
_SHARES: Final = frozenset({"scale-down-utilization-threshold", "scale-down-gpu-utilization-threshold"})
_RANGES: Final = frozenset({"cores-total", "memory-total"})
_EXPANDERS: Final = ("random", "most-pods", "least-waste", "price", "priority", "grpc", "least-nodes")
#: Pairs of which the program takes one only.
_PAIRS: Final = (("drain-priority-config", "max-graceful-termination-sec"), ("balancing-label", "balancing-ignore-label"))
#: Source of the flags: cluster-autoscaler/main.go and cluster-autoscaler/config/flags/flags.go of kubernetes/autoscaler, releases 1.20 to
#: 1.35; those that later releases removed are left in.
DATE: Final = "November 2026"
_DURATIONS: Final = frozenset(
    "blocking-system-pod-distruption-timeout check-capacity-provisioning-request-batch-timebox gce-mig-instances-min-refresh-wait-time "
    "initial-node-group-backoff-duration leader-elect-lease-duration leader-elect-renew-deadline leader-elect-retry-period "
    "log-flush-frequency max-binpacking-time max-bulk-soft-taint-time max-failing-time max-inactivity max-node-group-backoff-duration "
    "max-node-provision-time max-nodegroup-binpacking-duration max-pod-eviction-time new-pod-scale-up-delay "
    "node-delete-delay-after-taint node-deletion-batcher-interval node-deletion-candidate-ttl node-deletion-delay-timeout "
    "node-group-backoff-reset-timeout node-info-cache-expire-time provisioning-request-initial-backoff-time "
    "provisioning-request-max-backoff-time scale-down-delay-after-add scale-down-delay-after-delete scale-down-delay-after-failure "
    "scale-down-simulation-timeout scale-down-unneeded-time scale-down-unready-time scan-interval unregistered-node-removal-time "
    "unremovable-node-recheck-timeout".split()
)
_OTHERS: Final = frozenset(
    "add-dir-header address async-node-groups aws-use-static-instance-list balance-similar-node-groups "
    "balancing-ignore-label balancing-label bulk-mig-instances-listing-enabled bypassed-scheduler-names "
    "capacity-buffer-controller-enabled capacity-buffer-pod-injection-enabled capacity-quotas-enabled check-capacity-batch-processing "
    "check-capacity-processor-instance check-capacity-provisioning-request-max-batch-size cloud-config cloud-provider cluster-name "
    "cluster-snapshot-parallelism clusterapi-cloud-config-authoritative cordon-node-before-terminating "
    "daemonset-eviction-for-empty-nodes daemonset-eviction-for-occupied-nodes debugging-snapshot-enabled drain-priority-config "
    "dynamic-node-delete-delay-after-taint-enabled emit-per-nodegroup-metrics enable-csi-node-aware-scheduling "
    "enable-dynamic-resource-allocation enable-proactive-scaleup enable-provisioning-requests enforce-node-group-min-size estimator "
    "expander expendable-pods-priority-cutoff fastpath-binpacking-enabled feature-gates force-delete-failed-nodes "
    "force-delete-unregistered-nodes force-ds frequent-loops-enabled gce-concurrent-refreshes gce-expander-ephemeral-storage-support "
    "gpu-total grpc-expander-cert grpc-expander-url help ignore-daemonsets-utilization ignore-mirror-pods-utilization ignore-taint "
    "kube-api-content-type kube-client-burst kube-client-qps kubeconfig kubernetes leader-elect leader-elect-resource-lock "
    "leader-elect-resource-name leader-elect-resource-namespace log-backtrace-at log-dir log-file log-file-max-size "
    "log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format "
    "max-allocatable-difference-ratio max-autoprovisioned-node-group-count max-bulk-soft-taint-count max-drain-parallelism "
    "max-empty-bulk-delete max-free-difference-ratio max-graceful-termination-sec max-nodes-per-scaleup max-nodes-total "
    "max-scale-down-parallelism max-total-unready-percentage memory-difference-ratio min-replica-count namespace "
    "node-autoprovisioning-enabled node-group-auto-discovery nodes ok-total-unready-count one-output parallel-drain parallel-scale-up "
    "pod-injection-limit predicate-parallelism profiling provisioning-request-max-backoff-cache-size record-duplicated-events regional "
    "scale-down-candidates-pool-min-count scale-down-candidates-pool-ratio scale-down-delay-type-local scale-down-enabled "
    "scale-down-non-empty-candidates-count scale-down-unready-enabled scale-from-unschedulable scale-up-from-zero scheduler-config-file "
    "skip-headers skip-log-headers skip-nodes-with-custom-controller-pods skip-nodes-with-local-storage skip-nodes-with-system-pods "
    "startup-taint status-config-map-name status-taint user-agent v version write-status-configmap".split()
)
_LOGGING: Final = frozenset(("alsologtostderr", "logtostderr", "stderrthreshold", "vmodule"))
#: All flags, without dashes.
KNOWN: Final = _DURATIONS | _OTHERS | _LOGGING | _SHARES | _RANGES
#: As Go's time.ParseDuration reads it.
_DURATION: Final = re.compile(r"[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")
#: Variables, and placeholders of templates.
_FILLED_IN: Final = re.compile(r"\$|<|\{\{")
_RANGE: Final = re.compile(r"(\d+):(\d+)")
_NODES: Final = re.compile(r"(\d+):(\d+):(.+)")


class _Flag(NamedTuple):
    """A flag with its value, None if that is another word. ``word`` is the whole text at ``path``; empty in values of the chart."""

    name: str
    value: str | None
    path: Path
    word: str


def find_wrong_flags(manifests: Manifests) -> Iterable[Finding]:
    """L16: flags of Cluster Autoscaler in pods, and in extraArgs of its chart."""
    for manifest in manifests.items:
        for flags in _programs(manifest):
            for flag in flags:
                yield from _unknown(manifest, flag) if flag.name not in KNOWN else _value(manifest, flag)
            yield from _contradictions(manifest, flags)


def _programs(manifest: Manifest) -> Iterator[list[_Flag]]:
    document = manifest.document
    template = template_of(document)
    for text, container in containers_of(template) if template is not None else ():
        if without_tag(container.text("image")).rsplit("/", 1)[-1].split("-arm64")[0].split("-amd64")[0] == "cluster-autoscaler":
            base = (*TEMPLATES[document.kind], *manifest_path(text))
            words = [
                (word, (*base, name, index))
                for name in ("command", "args")
                for index, word in enumerate(container.value(name) if isinstance(container.value(name), list) else [])
                if isinstance(word, str)
            ]
            yield [_flag(word, path) for word, path in words if word.startswith("--") and len(word) > 2 and not _FILLED_IN.search(word)]
    arguments = document.value("extraArgs")
    if not document.kind and isinstance(arguments, dict) and (document.has("autoDiscovery") or document.has("autoscalingGroups")):
        yield [
            _Flag(str(name).replace("_", "-"), _text(value), ("extraArgs", name), "")
            for name, value in arguments.items()
            if not isinstance(value, list | dict)
        ]


def _flag(word: str, path: Path) -> _Flag:
    name, equals, value = word[2:].partition("=")
    return _Flag(name.replace("_", "-"), value if equals else None, path, word)


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(manifest: Manifest, flag: _Flag) -> Iterator[Finding]:
    near = nearest(flag.name, KNOWN, cutoff=0.85)
    expected = f"--{near} (did you mean that?)" if near else f"a flag of Cluster Autoscaler, by its list of {DATE}"
    new = None
    if near:
        rest = f"={flag.value}" if flag.value is not None else ""
        new = changed(manifest.data, flag.path, f"--{near}{rest}") if flag.word else renamed(manifest.data, flag.path, near)
    mistake = _STOPS if near else _NEW
    yield mistake.at(manifest, flag.path, seen=f"--{flag.name}", expected=expected, new=new, advice="remove the flag, or correct its name")


def _value(manifest: Manifest, flag: _Flag) -> Iterator[Finding]:
    if flag.value is None:
        return
    mistake, expected = _STOPS, ""
    if flag.name in _DURATIONS and not _DURATION.fullmatch(flag.value):
        expected = "a duration with its unit, such as 10m"
    elif flag.name in _SHARES and not _is_share(flag.value):
        mistake = _SHARE if _is_number(flag.value) else _STOPS
        expected = "a share from 0 to 1, such as 0.5"
    elif flag.name in _RANGES and not _is_range(_RANGE.fullmatch(flag.value)):
        expected = "MIN:MAX, two whole numbers of which the first is not larger"
    elif flag.name == "nodes" and not _is_range(_NODES.fullmatch(flag.value)):
        expected = "MIN:MAX:NAME with a MIN that is not above MAX, such as 0:10:gpus"
    elif flag.name == "expander" and (unknown := [name for name in flag.value.split(",") if name.strip() not in _EXPANDERS]):
        near = nearest(unknown[0], _EXPANDERS)
        expected = f"{near} (did you mean that?)" if near else f"one of {', '.join(_EXPANDERS)}"
    if expected:
        seen, right = f"--{flag.name}={flag.value}", expected.removesuffix(" (did you mean that?)")
        yield mistake.at(manifest, flag.path, seen=seen, expected=expected, advice=f"write {right}")


def _is_range(match: re.Match[str] | None) -> bool:
    return match is not None and int(match[1][:18]) <= int(match[2][:18])


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", text) is not None


def _is_share(text: str) -> bool:
    return _is_number(text) and 0 <= float(text) <= 1


def _contradictions(manifest: Manifest, flags: list[_Flag]) -> Iterator[Finding]:
    by_name: dict[str, _Flag] = {flag.name: flag for flag in flags}
    for first, second in _PAIRS:
        if first in by_name and second in by_name:
            seen, advice = f"--{first} beside --{second}", f"remove --{first} or --{second}"
            yield _STOPS.at(manifest, by_name[second].path, seen=seen, expected="one of them", advice=advice)
    yield from _same_group_twice(manifest, flags)
    if all(name in by_name for name in _GROUPS):
        yield _BOTH.at(
            manifest,
            by_name["nodes"].path,
            seen="--nodes beside --node-group-auto-discovery",
            expected="one of them for each group",
            advice="see that no group in --nodes has the tags or the name that are searched for",
        )


def _same_group_twice(manifest: Manifest, flags: list[_Flag]) -> Iterator[Finding]:
    sizes: dict[str, str] = {}
    for flag in flags:
        match = _NODES.fullmatch(flag.value or "") if flag.name == "nodes" else None
        if match is not None and sizes.setdefault(match[3], flag.value or "") != flag.value:
            seen = f"--nodes={flag.value} beside --nodes={sizes[match[3]]}"
            yield _TWICE.at(manifest, flag.path, seen=seen, expected="one entry for a group", advice=f"remove one of the two of {match[3]}")


LINTS = (Lint("L16", "flags of Cluster Autoscaler", find_wrong_flags),)
