"""Peers with settings other than their defaults, as names: ``karpenter(budget=1.0,consolidate_after=30.0)``.

A comparison with a peer's defaults only may be won by the defaults. :func:`sweep_settings` finds the setting that costs least on the very
trace that is compared, which no operator could know: it is better than a peer can be tuned in reality.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from gpuscaler.model.pools import Policy
from gpuscaler.simulation.policies.peers.cluster_autoscaler import ClusterAutoscaler
from gpuscaler.simulation.policies.peers.expanders import EXPANDERS
from gpuscaler.simulation.policies.peers.karpenter import Karpenter
from gpuscaler.simulation.policies.peers.settings import ClusterAutoscalerSettings, KarpenterSettings
from gpuscaler.simulation.world.autoscaler import Autoscaler
from gpuscaler.simulation.world.meter import Result

S = TypeVar("S", bound=msgspec.Struct)

#: A setting's name with the values to try, the default first.
Axes = Mapping[str, tuple[object, ...]]

#: The settings that a sweep tries, by peer.
AXES: Mapping[str, Axes] = {
    "karpenter": {"consolidate_after": (0.0, 30.0, 300.0), "budget": (0.10, 1.0), "batch_idle": (1.0, 10.0)},
    "cluster-autoscaler": {
        "expander": ("least-waste", *(name for name in EXPANDERS if name != "least-waste")),
        "scale_down_unneeded_time": (600.0, 120.0, 30.0),
        "scale_down_delay_after_add": (600.0, 60.0, 10.0),
        "error_signal": (None, 60.0),
    },
}

#: Further settings to try if pods may be moved: they have no effect otherwise.
MOVING_AXES: Mapping[str, Axes] = {
    "karpenter": {
        "consolidation_policy": ("WhenEmptyOrUnderutilized", "WhenEmpty", "Balanced"),
        "spot_to_spot": (False, True),
    },
    # A threshold of 0 would keep empty nodes too.
    "cluster-autoscaler": {"scale_down_gpu_utilization_threshold": (0.5, 0.01, 1.0)},
}

_NAME = re.compile(r"([a-z-]+)(?:\((.*)\))?")


def peer_by_name(name: str, policy: Policy) -> Autoscaler | None:
    """Return the peer of that name with its settings; None if there is no such peer. Raises ValueError for an unknown setting."""
    matched = _NAME.fullmatch(name)
    base = matched[1] if matched else ""
    settings = dict(part.split("=", 1) for part in (matched[2] or "").split(",") if "=" in part) if matched else {}
    scaler: Karpenter | ClusterAutoscaler
    if base == Karpenter.name:
        scaler = Karpenter(policy, _settings(KarpenterSettings, settings, name))
    elif base == ClusterAutoscaler.name:
        scaler = ClusterAutoscaler(policy, _settings(ClusterAutoscalerSettings, settings, name))
    else:
        return None
    scaler.name = name
    return scaler


def _settings(kind: type[S], texts: Mapping[str, str], name: str) -> S:
    unknown = sorted(set(texts) - set(kind.__struct_fields__))
    if unknown:
        raise ValueError(f"{name}: unknown setting {unknown[0]}: expected one of {', '.join(kind.__struct_fields__)}")
    values = {key: None if value == "none" else value for key, value in texts.items()}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error


def axes_of(base: str, *, moves: bool) -> Axes:
    """The settings that a sweep tries for a peer; ``moves`` says whether pods of the run may be moved."""
    return {**AXES[base], **(MOVING_AXES[base] if moves else {})}


def peer_name(base: str, changed: Mapping[str, object]) -> str:
    """Format the name of a peer with these settings changed."""
    parts = [f"{key}={'none' if value is None else value}" for key, value in sorted(changed.items())]
    return f"{base}({','.join(parts)})" if parts else base


def sweep_settings(base: str, run: Callable[[Sequence[str]], Sequence[Result]], *, axes: Axes | None = None) -> list[Result]:
    """Results of a peer with many settings, the cheapest first; ``run`` makes one for each name.

    Each setting is changed alone; then the best values of each are combined. A setting that leaves pods without a machine that another
    setting serves comes last, even if it is cheap.
    """
    axes_tried = axes_of(base, moves=False) if axes is None else axes
    singles = {(key, value): peer_name(base, {key: value}) for key, values in axes_tried.items() for value in values[1:]}
    names = [base, *singles.values()]
    results = dict(zip(names, run(names), strict=True))
    best: dict[str, object] = {}
    for key, values in axes_tried.items():
        best_number = min((_rank(results[singles.get((key, value), base)]), number) for number, value in enumerate(values))[1]
        if best_number:
            best[key] = values[best_number]
    combined = peer_name(base, best)
    if combined not in results:
        results[combined] = run([combined])[0]
    return sorted(results.values(), key=_rank)


def _rank(result: Result) -> tuple[int, float, float]:
    return (result.unserved, result.cost, result.wait.mean or 0.0)
