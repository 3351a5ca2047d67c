"""Rules of the metrics API: which series of Prometheus become which metrics."""

from collections.abc import Iterable
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, yaml_file

RULES: Final = "gpuscaler/metrics-rules.yaml"
#: Average utilization of a pod's GPUs in percent, from the series ``nvidia_gpu_duty_cycle`` of gpuscaler's exporter.
DUTY_CYCLE: Final = "duty_cycle_current"
_SELECTED: Final = "<<.Series>>{<<.LabelMatchers>>}"


def metrics_files(description: Description) -> Iterable[GeneratedFile]:
    if description.prometheus:
        yield yaml_file(RULES, "the rules of the API of GPU metrics, which are applied together with the values", [_rules()])


def _rules() -> Tree:
    labels = {"node_name": "node", "pod_name": "pod", "namespace_name": "namespace"}
    series = '{__name__=~"^nvidia_gpu_.+",uuid!="",pod_name!=""}'
    sums = "(_bytes|_milliwatts)$"
    mean, total, window = (
        f"{text} by (<<.GroupBy>>)" for text in (f"avg({_SELECTED})", f"sum({_SELECTED})", f"avg(avg_over_time({_SELECTED}[3m]))")
    )
    current, over_time = ({"matches": "^nvidia_gpu_(.+)$", "as": f"${{1}}_{suffix}"} for suffix in ("current", "over_time"))
    gpu = [
        because(
            "Percentages and temperatures: a pod with several GPUs has their mean.",
            _rule(series, labels, name=current, query=mean, kept={"isNot": sums}),
        ),
        because(
            "Memory and power: a pod with several GPUs has their sum.",
            _rule(series, labels, name=current, query=total, kept={"is": sums}),
        ),
        because(
            "The same over three minutes, for workloads whose load changes from second to second.",
            _rule(series, labels, name=over_time, query=window, kept={"isNot": sums}),
        ),
        because(
            "Requests of model servers that wait or run. A GPU of a language model is busy with a single request, so its queue says more "
            "about demand than its utilization.",
            _rule(
                '{__name__=~"^vllm:num_requests_.+",namespace!="",pod!=""}',
                {"pod": "pod", "namespace": "namespace"},
                name={"matches": "^vllm:(.+)$", "as": "vllm_${1}"},
                query=total,
                kept={"is": "_(waiting|running)$"},
            ),
        ),
    ]
    return {"metrics": {"rules": {"rules": gpu}}}


def _rule(series: str, labels: dict[str, str], *, name: dict[str, str], query: str, kept: dict[str, str]) -> Tree:
    return {
        "seriesQuery": series,
        "seriesFilters": [kept],
        "resources": {
            "overrides": because(
                "Which label names the pod, its namespace and its node. With a wrong label the metric exists, and no pod has a value.",
                {label: {"resource": resource} for label, resource in labels.items()},
            )
        },
        "name": name,
        "metricsQuery": query,
    }
