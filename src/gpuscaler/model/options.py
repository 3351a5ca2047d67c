"""Typed annotations and labels of pods that planning uses.

Names: DESIGN, "Annotations and taints of our own" and "Names on the wire". A value that cannot be parsed causes a warning on the pod, which
does not repeat the value, and is otherwise ignored.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from msgspec import Struct, field

from gpuscaler.model.durations import DurationError, parse_positive_duration
from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.pods import PodOptions
from gpuscaler.model.pools import STEERINGS
from gpuscaler.model.quantities import describe_unreadable, shorten_value
from gpuscaler.model.selectors import parse_integer
from gpuscaler.model.well_known import OWN_PREFIX

T = TypeVar("T")
D = TypeVar("D")

#: Upper limits in seconds for the time that a pod gets to save its work (default of the setting: an hour), and for other durations in
#: annotations (thirty days).
MAX_GRACE, LONGEST = 3600.0, 2_592_000.0
#: Seconds from 1970 to 2200. Later times are rejected.
LATEST = 7_258_118_400.0
#: Maximum size of a gang: more pods than a cluster can hold.
MOST_MEMBERS = 1_000_000
#: The value of an annotation that is not there.
NO_CHECKS: frozenset[str] = frozenset()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The annotation for moving a GPU pod without another ready replica to save money, and its values.
DISRUPTION, ALLOW, NEVER = "gpuscaler.io/disruption", "allow", "never"
#: The annotation for how a pod gets to the machine promised to it.
STEERING = f"{OWN_PREFIX}steering"
#: Annotations with the time of the checkpoint request, and with the request that the pod has answered.
CHECKPOINT_REQUESTED, CHECKPOINTED = "gpuscaler.io/checkpoint-requested", "gpuscaler.io/checkpointed"
#: The annotation with the ids of checks whose findings about the object are not reported; on objects of any kind.
IGNORE_FINDINGS = f"{OWN_PREFIX}ignore-findings"
_CA = "cluster-autoscaler.kubernetes.io/"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_COSCHEDULING = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_KUEUE = "kueue.x-k8s.io/pod-group-name"
_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_DO_NOT_DISRUPT_KEY = "karpenter.sh/do-not-disrupt"
_NO_DRAIN = "openai/do-not-drain"
#: The labels that are read. A pod without them and without the annotations has no options.
LABELS = frozenset((_JOBSET, *_COSCHEDULING, _KUEUE, _NO_DRAIN))


class PodAnnotations(Struct, frozen=True, gc=False):
    """The annotations that are read; decoding skips all others."""

    gang: str | None = field(default=None, name="gpuscaler.io/gang")
    gang_size: str | None = field(default=None, name="gpuscaler.io/gang-size")
    gang_topology: str | None = field(default=None, name="gpuscaler.io/gang-topology")
    market: str | None = field(default=None, name="gpuscaler.io/market")
    spot_wait: str | None = field(default=None, name="gpuscaler.io/spot-wait")
    deadline: str | None = field(default=None, name="gpuscaler.io/deadline")
    expected_duration: str | None = field(default=None, name="gpuscaler.io/expected-duration")
    restart_cost: str | None = field(default=None, name="gpuscaler.io/restart-cost")
    grace: str | None = field(default=None, name="gpuscaler.io/grace")
    run_for: str | None = field(default=None, name="gpuscaler.io/run-for")
    safe_to_evict: str | None = field(default=None, name="cluster-autoscaler.kubernetes.io/safe-to-evict")
    safe_local_volumes: str | None = field(default=None, name="cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes")
    scale_up_delay: str | None = field(default=None, name="cluster-autoscaler.kubernetes.io/pod-scale-up-delay")
    do_not_disrupt: str | None = field(default=None, name="karpenter.sh/do-not-disrupt")
    disruption: str | None = field(default=None, name=DISRUPTION)
    steering: str | None = field(default=None, name=STEERING)
    mirror: str | None = field(default=None, name="kubernetes.io/config.mirror")
    volcano: str | None = field(default=None, name="scheduling.k8s.io/group-name")
    volcano_own: str | None = field(default=None, name="scheduling.volcano.sh/group-name")
    kueue_count: str | None = field(default=None, name="kueue.x-k8s.io/pod-group-total-count")
    checkpoint_requested: str | None = field(default=None, name=CHECKPOINT_REQUESTED)
    checkpointed: str | None = field(default=None, name=CHECKPOINTED)
    ignore_findings: str | None = field(default=None, name=IGNORE_FINDINGS)


NO_ANNOTATIONS = PodAnnotations()


class Gang(NamedTuple):
    """The gang of a pod; ``size`` is 0 if a separate object defines it (a PodGroup, a JobSet, a Job's parallelism)."""

    name: str = ""
    size: int = 0
    source: str = ""


class _Reader:
    """Reads values one after the other and collects warnings about unreadable ones."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def read(self, name: str, text: str | None, convert: Callable[[str], T], default: D) -> T | D:
        """Return ``convert(text)``, or ``default`` if there is no text or it is invalid; a ValueError contains what was expected."""
        if text is None:
            return default
        try:
            return convert(text.strip())
        except DurationError as error:
            self.warn(name, text, error.expected)
        except ValueError as error:
            self.warn(name, text, str(error))
        return default

    def clamp(self, name: str, text: str | None, seconds: D, limit: float, why: str = "") -> D | float:
        """Return ``seconds``, limited to ``limit`` with a warning."""
        if not isinstance(seconds, float) or seconds <= limit:
            return seconds
        self.warnings.append(f"{name}: saw {shorten_value(text)}, expected at most {limit:g} s{why}; cut to it")
        return limit

    def warn(self, name: str, text: str, expected: str) -> None:
        self.warnings.append(f"{name}: saw {describe_unreadable(text)}, expected {expected}; ignored")


def pod_options(
    annotations: PodAnnotations | None, labels: Mapping[str, str], workload: str = "", *, max_grace: float = MAX_GRACE
) -> tuple[PodOptions, tuple[str, ...]]:
    """Return the options of a pod, and warnings about those that could not be parsed or were limited.

    ``max_grace`` is the longest time, in seconds, that any pod gets to save its work; other durations are limited to ``LONGEST``.
    ``workload`` is the native pod group that the specification refers to (``workload/podgroup``), "" if there is none.
    """
    given = annotations if annotations is not None else NO_ANNOTATIONS
    reader = _Reader()
    gang = _gang(given, labels, workload, reader)

    def duration(name: str, text: str | None, limit: float = LONGEST, why: str = "") -> float | None:
        return reader.clamp(name, text, reader.read(name, text, parse_positive_duration, None), limit, why)

    undisturbed = reader.read(_DO_NOT_DISRUPT_KEY, given.do_not_disrupt, _parse_do_not_disrupt, False)
    if not isinstance(undisturbed, bool):
        undisturbed = reader.clamp(_DO_NOT_DISRUPT_KEY, given.do_not_disrupt, undisturbed, LONGEST)
    options = PodOptions(
        market=reader.read(f"{OWN_PREFIX}market", given.market, _parse_markets, ()),
        spot_wait=duration(f"{OWN_PREFIX}spot-wait", given.spot_wait),
        deadline=reader.read(f"{OWN_PREFIX}deadline", given.deadline, _parse_moment, None),
        expected_duration=duration(f"{OWN_PREFIX}expected-duration", given.expected_duration),
        restart_cost=duration(f"{OWN_PREFIX}restart-cost", given.restart_cost),
        grace=duration(f"{OWN_PREFIX}grace", given.grace, min(max_grace, LONGEST), " (max_grace)"),
        run_for=duration(f"{OWN_PREFIX}run-for", given.run_for),
        scale_up_delay=duration(f"{_CA}pod-scale-up-delay", given.scale_up_delay),
        safe_to_evict=reader.read(f"{_CA}safe-to-evict", given.safe_to_evict, parse_boolean, None),
        safe_to_evict_local_volumes=_parse_names(given.safe_local_volumes),
        do_not_disrupt=undisturbed
        if isinstance(undisturbed, bool)
        else reader.clamp(_DO_NOT_DISRUPT_KEY, given.do_not_disrupt, undisturbed, LONGEST),
        disruption=reader.read(DISRUPTION, given.disruption, _parse_mode, ""),
        steering=reader.read(STEERING, given.steering, _parse_steering_mode, ""),
        do_not_drain=_NO_DRAIN in labels and labels[_NO_DRAIN].lower() != "false",
        mirror=given.mirror is not None,
        gang=gang.name,
        gang_size=gang.size,
        gang_topology=reader.read(f"{OWN_PREFIX}gang-topology", given.gang_topology, _parse_topology, "zone"),
        gang_source=gang.source,
    )
    return options, tuple(reader.warnings)


def parse_disruption(text: str | None) -> tuple[str, tuple[str, ...]]:
    """Read the disruption annotation of an owner or a Namespace, empty if there is none; the second value are warnings."""
    reader = _Reader()
    return reader.read(DISRUPTION, text, _parse_mode, ""), tuple(reader.warnings)


def parse_steering(text: str | None) -> tuple[str, tuple[str, ...]]:
    """Read the steering annotation of a Namespace, empty if there is none; the second value are warnings."""
    reader = _Reader()
    return reader.read(STEERING, text, _parse_steering_mode, ""), tuple(reader.warnings)


def parse_ignored_findings(text: str | None) -> frozenset[str]:
    """Return the ids of checks in the annotation, in capitals; ``ALL`` stands for all."""
    return frozenset(name.strip().upper() for name in text.split(",")) - {""} if text else NO_CHECKS


def parse_checkpoint(annotations: PodAnnotations | None) -> tuple[float, float]:
    """Return the time of a pod's checkpoint request, and of the request that it has answered; 0 if missing or unreadable."""
    if annotations is None or (annotations.checkpoint_requested is None and annotations.checkpointed is None):
        return 0.0, 0.0
    return _parse_moment_or_never(annotations.checkpoint_requested), _parse_moment_or_never(annotations.checkpointed)


def _parse_moment_or_never(text: str | None) -> float:
    """Read a time written by a pod's processes. An unreadable one counts as not answered, without a warning: it may be half-written."""
    try:
        return _parse_moment((text or "").strip())
    except ValueError:
        return 0.0


def _gang(annotations: PodAnnotations, labels: Mapping[str, str], workload: str, reader: _Reader) -> Gang:
    """Return the gang. The first name counts: gpuscaler's annotations, then the native reference, then labels of other projects."""
    if annotations.gang:
        return Gang(annotations.gang, reader.read(f"{OWN_PREFIX}gang-size", annotations.gang_size, _parse_count, 0), "annotation")
    if annotations.gang_size is not None:
        reader.warn(f"{OWN_PREFIX}gang-size", annotations.gang_size, f"{OWN_PREFIX}gang as well")
    if workload:
        return Gang(workload, 0, "workload")
    for label in _COSCHEDULING:
        if labels.get(label):
            return Gang(labels[label], 0, "coscheduling")
    if annotations.volcano or annotations.volcano_own:
        return Gang(annotations.volcano or annotations.volcano_own or "", 0, "volcano")
    if labels.get(_KUEUE):
        return Gang(labels[_KUEUE], reader.read(_KUEUE_COUNT, annotations.kueue_count, _parse_count, 0), "kueue")
    if labels.get(_JOBSET):
        return Gang(labels[_JOBSET], 0, "jobset")
    return Gang()


def parse_boolean(text: str) -> bool:
    """Parse "true" or "false"; raise ValueError for anything else."""
    if text.lower() not in ("true", "false"):
        raise ValueError('"true" or "false"')
    return text.lower() == "true"


def _parse_do_not_disrupt(text: str) -> bool | float:
    return parse_boolean(text) if text.lower() in ("true", "false") else parse_positive_duration(text)


def _parse_mode(text: str) -> str:
    if text not in (ALLOW, NEVER):
        raise ValueError(f"{ALLOW} or {NEVER}")
    return text


def _parse_steering_mode(text: str) -> str:
    if text not in STEERINGS:
        raise ValueError(", ".join(STEERINGS[:-1]) + f" or {STEERINGS[-1]}")
    return text


def _parse_names(text: str | None) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in (text or "").split(",")} - {""}))


def _parse_markets(text: str) -> tuple[str, ...]:
    names = _parse_names(text)
    if names == ("any",):
        return ()
    if not names or not set(names) <= set(MARKETS):
        raise ValueError("a comma-separated list of spot, on-demand and reserved, or any")
    return names


def _parse_moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("an RFC 3339 time such as 2026-01-31T12:00:00Z")
    if not 0.0 <= (seconds := (moment - _EPOCH).total_seconds()) < LATEST:
        raise ValueError("a time between the years 1970 and 2200")
    return seconds


def _parse_count(text: str) -> int:
    number = parse_integer(text)
    if number is None or not 0 < number <= MOST_MEMBERS:
        raise ValueError(f"a whole number of at least 1 and at most {MOST_MEMBERS}")
    return number


def _parse_topology(text: str) -> str:
    if text not in ("zone", "any"):
        raise ValueError("zone or any")
    return text
