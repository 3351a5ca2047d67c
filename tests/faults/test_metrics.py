"""F41 and F42: metrics without values, and a metrics API that is away; the HorizontalPodAutoscaler uses the algorithm of Kubernetes."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.metrics.building import Serving, pod, serving
from tests.metrics.prometheus_double import PrometheusDouble

from gpuscaler.metrics.api.answering import Responder
from gpuscaler.metrics.api.documents.statuses import Failure
from gpuscaler.metrics.api.paths import parse_request
from gpuscaler.metrics.rules.builtin import builtin_rules
from gpuscaler.metrics.sources.prometheus import PrometheusAway
from gpuscaler.model.quantities import parse_milli
from gpuscaler.simulation.horizontal.history import History
from gpuscaler.simulation.horizontal.reading import read_autoscaler
from gpuscaler.simulation.horizontal.specs import MetricAnswer, PodSamples, ReplicaPod, Sample, Scale, Unavailable
from gpuscaler.simulation.horizontal.stepping import Outcome, step

NAMES = ("p0", "p1", "p2", "p3")
PATH = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ml/pods/%2A/duty_cycle_current?labelSelector=app%3Dllm"
#: Kubernetes removes replicas after five minutes without need.
LONG = 900.0
AUTOSCALER = read_autoscaler(
    {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llm", "namespace": "ml"},
        "spec": {
            "minReplicas": 1,
            "maxReplicas": 20,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {"metric": {"name": "duty_cycle_current"}, "target": {"type": "AverageValue", "averageValue": "40"}},
                }
            ],
        },
    }
)


@dataclass
class Hpa:
    """Queries every 15 s and scales at once."""

    replicas: int = 4
    history: History = field(default_factory=History)
    outcomes: list[Outcome] = field(default_factory=list)

    async def ask(self, here: Serving | None) -> MetricAnswer:
        """Query as the aggregator does, which turns a server that is not ready into an error of its own."""
        if here is None or here.source.trouble:
            return Unavailable("the server is currently unable to handle the request")
        try:
            reply = await Responder(here.source).answer(parse_request("GET", PATH), {})  # type: ignore[arg-type]  # only a path is asked for
        except Failure as failure:
            return Unavailable(failure.message)
        items = json.loads(reply.body)["items"]
        if not items:
            return Unavailable("no metrics returned from custom metrics API")
        return PodSamples({item["describedObject"]["name"]: Sample(parse_milli(item["value"])) for item in items})

    async def turn(self, here: Serving | None) -> Outcome:
        answer = await self.ask(here)
        now = asyncio.get_running_loop().time()
        pods = [ReplicaPod(name) for name in NAMES]
        scale = Scale(self.replicas, self.replicas)
        outcome = step(AUTOSCALER, scale, metrics=(answer,), pods=pods, history=self.history, now=now)
        self.replicas, self.history = outcome.desired, outcome.history
        self.outcomes.append(outcome)
        return outcome

    async def run(self, here: Serving | None, seconds: float, sample: Callable[[], None] = lambda: None) -> None:
        """Run for ``seconds``, with a scrape of ``sample`` every five seconds."""
        for number in range(int(seconds / 5)):
            sample()
            if number % 3 == 2:
                await self.turn(here)
            await asyncio.sleep(5)


def scrape(double: PrometheusDouble, value: float) -> Callable[[], None]:
    def take() -> None:
        for name in NAMES:
            double.put("nvidia_gpu_duty_cycle", value, uuid=name, pod_name=name, namespace_name="ml", node_name="n")

    return take


def vanish(double: PrometheusDouble) -> Callable[[], None]:
    double.stored.clear()
    return lambda: None


def stop(double: PrometheusDouble) -> Callable[[], None]:
    """Stop the exporters right after a moment without load, with no stale markers for their series."""
    scrape(double, 1.0)()
    return lambda: None


def die(double: PrometheusDouble) -> Callable[[], None]:
    """Stop Prometheus right after a moment without load, which was evaluated."""
    double.error = PrometheusAway("prometheus: cannot connect")
    return lambda: None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (vanish, "could not find the metric duty_cycle_current"),
        (lambda double: scrape(double, float("nan")), "no metrics returned"),
        (lambda double: scrape(double, -5.0), "no metrics returned"),
        (stop, "could not find the metric duty_cycle_current"),
        (die, "prometheus: cannot connect"),
    ],
    ids=["absent", "NaN", "negative", "stale", "Prometheus down"],
)
async def test_f41_a_metric_without_a_usable_value_is_an_error_and_removes_no_replica(
    fault: Callable[[PrometheusDouble], Callable[[], None]], message: str
) -> None:
    double = PrometheusDouble()
    scrape(double, 40.0)()
    hpa = Hpa()
    async with serving(*(pod(name, app="llm") for name in NAMES), rules=builtin_rules(), prometheus=double) as here:
        await asyncio.sleep(5)
        await hpa.run(here, 60, scrape(double, 40.0))
        assert not hpa.outcomes[-1].error
        # The last visible value was low load.
        await hpa.run(here, 30, scrape(double, 2.0))
        await hpa.run(here, LONG, fault(double))
        assert hpa.replicas == 4
        assert message in hpa.outcomes[-1].error
        double.error = None
        await hpa.run(here, 120, scrape(double, 80.0))
        assert hpa.replicas > 4
        assert not hpa.outcomes[-1].error


async def test_f42_the_number_of_replicas_stays_while_the_metrics_api_is_down_and_after_it_restarts() -> None:
    double = PrometheusDouble()
    busy = scrape(double, 80.0)
    busy()
    hpa = Hpa()
    objects = [pod(name, app="llm") for name in NAMES]
    async with serving(*objects, prometheus=double) as here:
        await asyncio.sleep(5)
        await hpa.run(here, 15, busy)
        grown = hpa.replicas
        assert grown > 4
    await hpa.run(None, LONG, busy)
    assert hpa.replicas == grown
    assert "unable to handle the request" in hpa.outcomes[-1].error
    double.delay = 2.0
    async with serving(*objects, prometheus=double) as here:
        while here.source.trouble:  # as a probe does
            await hpa.turn(here)
            await asyncio.sleep(0.1)
        # From the moment it reports ready every query has its answer.
        assert not (await hpa.turn(here)).error
        await hpa.run(here, 60, scrape(double, 160.0))
        assert hpa.replicas > grown
        assert not any(outcome.error for outcome in hpa.outcomes[-4:])
