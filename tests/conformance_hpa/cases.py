"""Random cases: a HorizontalPodAutoscaler and its observations over several steps, in the form of ``oracle/case.go``.

Values are often at the edges where the result changes: the tolerance, the end of a window, the next whole replica.
"""

import random
from typing import Any

from gpuscaler.model.quantities import parse_milli

Json = dict[str, Any]

MOST_INT32 = 2**31 - 1
RESOURCES = ("cpu", "memory", "example.com/gpu")
#: kube-controller-manager's defaults are drawn most often.
SETTINGS: list[Json] = [
    {"tolerance": tolerance, "stabilization": stabilization, "cpuInitialization": initialization, "initialReadinessDelay": delay}
    for tolerance, stabilization, initialization, delay in [(0.1, 300, 300, 30)] * 3
    + [(0, 30, 45, 0), (0.5, 0, 0, 30), (0.05, 120, 300, 30)]
]
CONTAINERS = ("main", "sidecar", "absent")


def draw_case(seed: int, number: int) -> Json:
    """Case ``number`` of ``seed``, the same every time."""
    return _Drawing(random.Random(f"{seed}/{number}")).case()


class _Drawing:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def case(self) -> Json:
        autoscaler = self._autoscaler()
        return {"autoscaler": autoscaler, "settings": self._settings(), "steps": self._steps(autoscaler["spec"])}

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _settings(self) -> Json:
        return self._rng.choice(SETTINGS)

    def _autoscaler(self) -> Json:
        metrics = self._metrics()
        waking = any(metric["type"] in ("Object", "External") for metric in metrics)
        least = self._rng.choice([0, 0, 1, 2] if waking else [1, 1, 2, 4])
        spec: Json = {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serving"},
            "maxReplicas": max(1, least, self._rng.choice([1, 3, 6, 10, 20, 100, 1000, MOST_INT32])),
        }
        if least != 1 or self._chance(0.5):
            spec["minReplicas"] = least
        if metrics:
            spec["metrics"] = metrics
        if self._chance(0.65):
            spec["behavior"] = self._behavior()
        return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "serving"}, "spec": spec}

    def _metrics(self) -> list[Json]:
        if self._chance(0.04):
            return []
        resources = [(resource, container) for resource in RESOURCES for container in ("", *CONTAINERS)]
        self._rng.shuffle(resources)
        return [self._metric(f"m{number}", resources[number]) for number in range(self._rng.choice([1, 1, 1, 2, 3]))]

    def _metric(self, name: str, resource: tuple[str, str]) -> Json:
        kind = self._rng.choice(["Resource", "Pods", "Pods", "Object", "External", "External"])
        if kind == "Resource":
            source: Json = {"name": resource[0], "target": self._target(utilization=True, value=False)}
            if not resource[1]:
                return {"type": "Resource", "resource": source}
            return {"type": "ContainerResource", "containerResource": {**source, "container": resource[1]}}
        source = {"metric": {"name": name}, "target": self._target(utilization=False, value=kind != "Pods")}
        if self._chance(0.3):
            source["metric"]["selector"] = self._selector()
        if kind == "Object":
            source["describedObject"] = {"apiVersion": "v1", "kind": "Service", "name": "front"}
            if self._chance(0.05):
                # The API server accepts it, but the controller then finds no target.
                source["target"]["type"] = "Utilization"
        return {"type": kind, kind.lower(): source}

    def _target(self, *, utilization: bool, value: bool) -> Json:
        amount = self._rng.choice(["1", "10", "10", "500m", "7", "1k", "64Mi", "1m"])
        if utilization and self._chance(0.6):
            return {"type": "Utilization", "averageUtilization": self._rng.choice([1, 50, 60, 80, 100, 130])}
        if value and self._chance(0.5):
            return {"type": "Value", "value": amount}
        return {"type": "AverageValue", "averageValue": amount}

    def _selector(self) -> Json:
        expressions = [
            {"key": "route", "operator": "In", "values": ["a", "b"]},
            {"key": "canary", "operator": "DoesNotExist"},
        ]
        selector: Json = {}
        if self._chance(0.7):
            selector["matchLabels"] = dict(self._rng.sample([("queue", "jobs"), ("zone", "z1"), ("app", "x")], self._rng.randint(1, 3)))
        if self._chance(0.5):
            selector["matchExpressions"] = expressions[: self._rng.randint(1, 2)]
        return selector

    def _behavior(self) -> Json:
        directions = [name for name in ("scaleUp", "scaleDown") if self._chance(0.7)]
        return {name: self._rules() for name in directions}

    def _rules(self) -> Json:
        rules: Json = {}
        if self._chance(0.6):
            rules["stabilizationWindowSeconds"] = self._rng.choice([0, 15, 30, 60, 300])
        if self._chance(0.5):
            rules["selectPolicy"] = self._rng.choice(["Max", "Min", "Min", "Disabled"])
        if self._chance(0.6):
            rules["policies"] = [self._policy() for _ in range(self._rng.randint(1, 3))]
        if self._chance(0.3):
            rules["tolerance"] = self._rng.choice(["0", "20m", "50m", "70m", "290m", "1", "1500m"])
        return rules

    def _policy(self) -> Json:
        kind = self._rng.choice(["Pods", "Percent"])
        value = self._rng.choice([1, 2, 5, 10, 33, 50, 100, 200, MOST_INT32 if self._chance(0.05) else 3])
        return {"type": kind, "value": value, "periodSeconds": self._rng.choice([1, 15, 30, 60, 60, 600, 1800])}

    def _steps(self, spec: Json) -> list[Json]:
        at, level = 0.0, 1.0
        count = self._rng.choice([1, 3, 6, 12])
        replicas = self._replicas(spec)
        steps: list[Json] = []
        for _ in range(count):
            level = max(0.0, level * self._rng.choice([1, 1, 1, 1.04, 0.9, 0.5, 2, 5]) + self._rng.choice([0, 0, 0.1]))
            pods = self._pods(replicas, at)
            steps.append(
                {
                    "at": at,
                    "replicas": replicas if not steps or self._chance(0.25) else None,
                    "observed": self._rng.randint(0, 6) if self._chance(0.2) else None,
                    "pods": pods,
                    "metrics": self._answers(spec, pods, at, level),
                }
            )
            at += self._rng.choice([15, 15, 15, 15, 0, 0.25, 14.75, 30, 60, 285, 300, 301, 1800])
            if self._chance(0.3):
                replicas = self._replicas(spec)
        return steps

    def _replicas(self, spec: Json) -> int:
        least: int = spec.get("minReplicas", 1)
        most: int = spec["maxReplicas"]
        if self._chance(0.02):
            return self._rng.choice([MOST_INT32, 2**30, 2**30 + 1])
        if self._chance(0.8):
            return self._rng.randint(least, min(most, least + 9))
        return self._rng.choice([0, least, most if most < 100 else 9, min(most, 40) + 1, max(0, least - 1)])

    def _pods(self, replicas: int, at: float) -> list[Json]:
        count = min(replicas, 12) if self._chance(0.8) else self._rng.randint(0, 5)
        plain = self._chance(0.5)
        return [self._pod(f"p{number}", at, plain=plain) for number in range(count)]

    def _pod(self, name: str, at: float, *, plain: bool) -> Json:
        """A pod in our own form; :func:`pod_object` converts it to that of Kubernetes. Times are whole seconds, as in the API."""
        pod: Json = {"name": name, "phase": "Running", "deleting": False, "ready": "True", "readySince": -600, "started": -900}
        requests = {"cpu": 100, "memory": 2**30 * 1000, "example.com/gpu": 1000}
        pod["containers"] = [{"name": "main", "requests": requests}]
        if plain:
            return pod
        pod["phase"] = self._rng.choice(["Running"] * 7 + ["Pending", "Failed", "Succeeded", "Unknown"])
        pod["deleting"] = self._chance(0.06)
        pod["ready"] = self._rng.choice(["True"] * 5 + ["False", "False", "Unknown", None])
        pod["readySince"] = int(at) - self._rng.choice([0, 10, 30, 45, 60, 75, 300, 330, 1000])
        pod["started"] = None if self._chance(0.07) else int(at) - self._rng.choice([0, 15, 45, 46, 299, 300, 301, 360, 1000])
        if self._chance(0.3):
            pod["containers"].append({"name": "sidecar", "requests": {"cpu": 50, "memory": 10**9}, "init": self._chance(0.5)})
        if self._chance(0.08):
            del requests[self._rng.choice(list(requests))]
        if self._chance(0.05):
            requests["cpu"] = 0
        if self._chance(0.1):
            pod["podRequests"] = {"cpu": 400, "memory": 3 * 2**30 * 1000}
        return pod

    def _answers(self, spec: Json, pods: list[Json], at: float, level: float) -> Json:
        metrics = spec.get("metrics") or [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}]
        return {_key(metric): self._answer(metric, pods, at, level) for metric in metrics}

    def _answer(self, metric: Json, pods: list[Json], at: float, level: float) -> Json:
        if self._chance(0.07):
            return {"error": "unable to fetch metrics from custom metrics API: the server is currently unable to handle the request"}
        wanted = self._wanted(metric)
        if metric["type"] == "Object":
            return {"object": self._value(wanted * len(pods), level)}
        if metric["type"] == "External":
            count = self._rng.choice([1, 1, 1, 2, 3, 0])
            values = [self._value(wanted * len(pods) // max(count, 1), level) for _ in range(count)]
            return {"series": [2**63 - 1, *values, 5] if self._chance(0.01) else values}
        names = [pod["name"] for pod in pods if self._chance(0.95)]
        if self._chance(0.03):
            names.append("stranger")
        even = self._value(wanted, level) if self._chance(0.4) else None
        samples = {}
        for name in names:
            value = self._value(wanted, level) if even is None else even
            samples[name] = {"value": value, "at": at - self._rng.choice([0, 5, 15, 30, 60]), "window": self._rng.choice([15, 30, 60])}
        return {"pods": samples}

    def _wanted(self, metric: Json) -> int:
        """The value of each pod if the metric is on its target, in thousandths."""
        source = metric[_field(metric["type"])]
        target = source["target"]
        if "averageUtilization" in target:
            requested = {"memory": 2**30 * 1000, "cpu": 100}.get(source["name"], 1000)
            return requested * int(target["averageUtilization"]) // 100
        return parse_milli(target.get("averageValue", target.get("value")))

    def _value(self, wanted: int, level: float) -> int:
        if self._chance(0.01):
            return self._rng.choice([2**62, -1000, 2**63 - 1, 0])
        if self._chance(0.4):
            return int(wanted * self._rng.choice([0.5, 0.9, 0.95, 1, 1.05, 1.1, 2]) * level)
        return int(wanted * level * self._rng.uniform(0.7, 1.4))


def _field(kind: str) -> str:
    return kind[0].lower() + kind[1:]


def _key(metric: Json) -> str:
    """The key of a metric in the answers of a step."""
    source = metric[_field(metric["type"])]
    return source["metric"]["name"] if "metric" in source else f"{source['name']}/{source.get('container', '')}"
