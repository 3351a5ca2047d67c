"""Pod features that depend on other pods: affinity, anti-affinity, topology spread."""

from .placing import INVALID, REQUIRED, node_selector
from .world import HOSTNAME, NAMESPACES, RACK, REGION, TOPOLOGY_KEYS, ZONE, Json, World, or_null

LABELS = {"app": ("web", "db", "job"), "version": ("1", "2"), "track": ("", "canary")}
KEY_WEIGHTS = {ZONE: 5.0, HOSTNAME: 4.0, RACK: 2.0, REGION: 1.0}


def pod_labels(world: World) -> dict[str, str] | None:
    labels = {key: world.one(values) for key, values in LABELS.items() if world.chance(0.7)}
    return labels or world.one((None, {}))


def affinity(world: World, pod: Json) -> None:
    pod["spec"].setdefault("affinity", {})["podAffinity"] = {REQUIRED: terms(world, pod)}


def anti_affinity(world: World, pod: Json) -> None:
    pod["spec"].setdefault("affinity", {})["podAntiAffinity"] = {REQUIRED: terms(world, pod)}


def terms(world: World, pod: Json) -> list[Json]:
    return [term(world, pod) for _ in range(world.weighted({1: 7, 2: 3}))]


def term(world: World, pod: Json) -> Json:
    drawn: Json = {"topologyKey": world.weighted(KEY_WEIGHTS)}
    selector = label_selector(world, pod)
    if world.chance(0.15) and selector is not None:
        name, operator = world.one((("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")))
        merge_label_keys(world, pod, drawn, selector, name=name, operator=operator)
    if selector is not None or world.chance(0.5):
        drawn["labelSelector"] = selector
    if world.chance(0.25):
        drawn["namespaces"] = or_null(world, world.some(NAMESPACES, 2, 0))
    if world.chance(0.25):
        drawn["namespaceSelector"] = world.one(
            (
                None,
                {},
                {"matchLabels": {"team": "red"}},
                {"matchLabels": {"kubernetes.io/metadata.name": "blue"}},
                {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]},
                {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]},
            )
        )
    return drawn


def merge_label_keys(world: World, pod: Json, drawn: Json, selector: Json, *, name: str, operator: str) -> None:
    """Add ``matchLabelKeys`` or ``mismatchLabelKeys`` as they are stored: the API server merges them into the selector."""
    keys = world.some(tuple(LABELS), 2)
    drawn[name] = keys
    values = pod["metadata"].get("labels") or {}
    merged = [{"key": key, "operator": operator, "values": [values[key]]} for key in keys if key in values]
    if merged:
        selector["matchExpressions"] = [*(selector.get("matchExpressions") or []), *merged]


def label_selector(world: World, pod: Json) -> Json | None:
    """Mostly a selector that some pods match; every third time one that the pod itself matches; sometimes empty or none."""
    labels = pod["metadata"].get("labels") or {}
    if world.chance(0.04):
        return None
    if world.chance(0.05):
        empty: tuple[Json, ...] = ({}, {"matchLabels": None}, {"matchExpressions": []})
        return world.one(empty)
    if labels and world.chance(0.35):
        key = world.one(tuple(labels))
        return {"matchLabels": {key: labels[key]}}
    selector: Json = {}
    if world.chance(0.6):
        key = world.one(tuple(LABELS))
        selector["matchLabels"] = {key: world.one(LABELS[key])}
    if not selector or world.chance(0.3):
        selector["matchExpressions"] = [label_requirement(world) for _ in range(world.rng.randint(1, 2))]
    return selector


def label_requirement(world: World) -> Json:
    key = world.one((*LABELS, "missing"))
    operator = world.weighted({"In": 4, "NotIn": 3, "Exists": 2, "DoesNotExist": 2})
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    odd = INVALID if world.chance(0.02) else ()
    return {"key": key, "operator": operator, "values": world.some((*LABELS.get(key, ("x",)), *odd), 2)}


def spread(world: World, pod: Json) -> None:
    keys = world.some(TOPOLOGY_KEYS[:3], 2) if world.chance(0.3) else [world.weighted(KEY_WEIGHTS)]
    drawn = [constraint(world, pod, key) for key in keys]
    pod["spec"]["topologySpreadConstraints"] = drawn
    if drawn[0].get("nodeAffinityPolicy") == "Ignore" and world.chance(0.4):
        node_selector(world, pod)


def constraint(world: World, pod: Json, key: str) -> Json:
    drawn: Json = {
        "topologyKey": key,
        "maxSkew": world.weighted({1: 7, 2: 2, 3: 1}),
        "whenUnsatisfiable": world.weighted({"DoNotSchedule": 9, "ScheduleAnyway": 1}),
    }
    selector = label_selector(world, pod)
    if world.chance(0.2):
        spread_label_keys(world, pod, drawn, selector)
    if selector is not None or world.chance(0.5):
        drawn["labelSelector"] = selector
    if drawn["whenUnsatisfiable"] == "DoNotSchedule" and world.chance(0.3):
        drawn["minDomains"] = world.rng.randint(1, 4)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if world.chance(0.3):
            drawn[policy] = world.one(("Honor", "Ignore"))
    return drawn


def spread_label_keys(world: World, pod: Json, drawn: Json, selector: Json | None) -> None:
    """Add ``matchLabelKeys`` to a spread constraint: merged into the selector since 1.34, unchanged in older pods."""
    if selector is not None and world.chance(0.7):
        merge_label_keys(world, pod, drawn, selector, name="matchLabelKeys", operator="In")
    else:
        drawn["matchLabelKeys"] = world.some(tuple(LABELS), 2)
