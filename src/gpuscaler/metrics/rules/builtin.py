"""The built-in rules: GPUs measured by our exporter and by dcgm-exporter, and demand on language model servers.

They are written in the same language as a file of rules, so that a file can start with them. If two rules make the same metric, the later
one is used: our exporter takes precedence over dcgm-exporter, and labels with ``honor_labels`` in Prometheus over those without.

Names and units: the write-up on HPA with GPU metrics of Alibaba Cloud (2018) for ``…_current`` and ``…_over_time``; the documentation of
dcgm-exporter 4, vLLM, SGLang, Text Generation Inference, Triton and the Gateway API Inference Extension (read November 2026).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import yaml

from gpuscaler.metrics.rules.reading import RuleSet, read_rules
from gpuscaler.metrics.rules.resources import Resources

Json = dict[str, object]

_WINDOW = "3m"
_SELECTED = "{<<.LabelMatchers>>%s}"


class _Style(NamedTuple):
    """One style of dcgm-exporter's labels: those of the pod and its namespace, and further matchers that identify the style."""

    pod: str
    namespace: str
    matchers: str = ""


_STYLES = (
    # Old versions, and the option --use-old-namespace.
    _Style("pod_name", "pod_namespace"),
    # With honor_labels, pod is the pod that has the GPU. Without honor_labels, pod is the exporter's own for an idle GPU.
    _Style("pod", "namespace", ',exported_pod=""'),
    _Style("exported_pod", "exported_namespace"),
)


class _MappedMetric(NamedTuple):
    """A metric of the write-up, made from metrics of dcgm-exporter in ``[ ]`` in ``value``; it exists if ``series`` does."""

    name: str
    series: str
    together: str
    value: str


_MAPPED = (
    _MappedMetric(
        # MIG devices have no GPU_UTIL.
        "duty_cycle",
        "DCGM_FI_(DEV_GPU_UTIL|PROF_GR_ENGINE_ACTIVE)",
        "avg",
        "[DCGM_FI_DEV_GPU_UTIL] or 100 * [DCGM_FI_PROF_GR_ENGINE_ACTIVE]",
    ),
    _MappedMetric("memory_used_bytes", "DCGM_FI_DEV_FB_USED", "sum", "1048576 * [DCGM_FI_DEV_FB_USED]"),
    _MappedMetric("memory_total_bytes", "DCGM_FI_DEV_FB_FREE", "sum", "1048576 * ([DCGM_FI_DEV_FB_USED] + [DCGM_FI_DEV_FB_FREE])"),
    _MappedMetric("power_usage_milliwatts", "DCGM_FI_DEV_POWER_USAGE", "sum", "1000 * [DCGM_FI_DEV_POWER_USAGE]"),
    _MappedMetric("temperature_celsius", "DCGM_FI_DEV_GPU_TEMP", "avg", "[DCGM_FI_DEV_GPU_TEMP]"),
)
#: dcgm-exporter's metrics that are summed, and those that are not gauges of a GPU's load.
_DCGM_SUM = "^DCGM_FI_DEV_(FB_USED|FB_FREE|FB_TOTAL|FB_RESERVED|POWER_USAGE)$"
_DCGM_OTHER = "(_TOTAL|TOTAL_|_COUNTER|_ERRORS|_LICENSE|REMAP|RETIRED|_ECC_|DRIVER)"
_OURS: Mapping[str, str] = {"node_name": "node", "pod_name": "pod", "namespace_name": "namespace"}
_OURS_SUM = "(_bytes|_watts|_milliwatts|_per_second)$"

#: Language model servers: waiting and running requests are summed over replicas, ratios are not.
_SERVERS = "^(vllm|sglang|tgi|nv_inference)[:_]"
_DEMAND = (
    "^(vllm:num_requests_(waiting|running)|sglang:num_(queue|running)_reqs|tgi_(queue_size|batch_current_size)"
    "|nv_inference_pending_request_count)$"
)
_SHARES = "^(vllm:(kv|gpu)_cache_usage_perc|sglang:token_usage)$"
_OF_REPLICAS = re.compile(
    r"(vllm|sglang|tgi|nv_inference)[:_]|DCGM_FI_|((gpuscaler|nvidia)_)?gpu_(?!.*(queue|waiting|backlog|jobs))"
    r"|(duty_cycle|temperature_celsius|fanspeed_percent|memory_(used|total)_bytes|power_usage_milliwatts)_(current|over_time)$"
)
#: Metrics of an inference gateway's endpoint picker, which exist even without replicas.
_GATEWAY = "^inference_(pool|extension)_.*(queue_size|utilization)$"


def builtin_rules(resources: Resources | None = None) -> RuleSet:
    """The built-in rules. They measure nothing that can be negative: a negative number is an error and must not be used for scaling."""
    rules = read_rules(builtin_rules_text(), source="built-in rules", resources=resources)
    custom, external = (tuple(replace(rule, below_zero=False) for rule in several) for several in (rules.rules, rules.external))
    return RuleSet(custom, external, rules.problems, rules.notes)


def builtin_rules_text() -> str:
    """The built-in rules as a file."""
    return yaml.safe_dump({"rules": [*_custom()], "externalRules": [*_external()]}, sort_keys=False, width=200)


def is_exported_by_replicas(metric: str) -> bool:
    """Whether a metric is exported by the replicas themselves. Then it does not exist without replicas, and cannot start the first one.

    Built-in metrics are recognized by their names. So are the series that they are made of, whose names a file of rules may keep.
    """
    return _OF_REPLICAS.match(metric) is not None


def _custom() -> Iterator[Json]:
    yield from _of_servers({"pod": "pod", "namespace": "namespace"}, by=" by (<<.GroupBy>>)")
    for style in _STYLES:
        yield from _dcgm(style)
    for style in _STYLES:
        for mapped in _MAPPED:
            yield _of_dcgm(style, mapped, "current", "%s")
            yield _of_dcgm(style, mapped, "over_time", f"avg_over_time(%s[{_WINDOW}])")
    yield from _exporter()


def _external() -> Iterator[Json]:
    yield from _of_servers({"namespace": "namespace"}, by="")
    for together, negated in (("avg", False), ("sum", True)):
        yield _rule(
            f'{{__name__=~"{_GATEWAY}"}}',
            {"namespace": "namespace"},
            matches=_GATEWAY,
            filters=[{"isNot" if negated else "is": "_average_|utilization$"}],
            query=f"{together}(<<.Series>>{_SELECTED % ''})",
        )


def _of_servers(labels: Mapping[str, str], *, by: str) -> Iterator[Json]:
    series = f'{{__name__=~"{_SERVERS}.+",namespace!=""}}'
    for matches, together in ((_DEMAND, "sum"), (_SHARES, "avg")):
        query = f"{together}(<<.Series>>{_SELECTED % ''}){by}"
        yield _rule(series, labels, matches="^(vllm|sglang):(.+)$", named="${1}_${2}", filters=[{"is": matches}], query=query)
        yield _rule(series, labels, matches="^(tgi|nv)_.+$", named="$0", filters=[{"is": matches}], query=query)


def _dcgm(style: _Style) -> Iterator[Json]:
    for together, filters in (
        ("avg", [{"isNot": _DCGM_SUM}, {"isNot": _DCGM_OTHER}]),
        ("sum", [{"is": _DCGM_SUM}]),
    ):
        query = f"{together}(<<.Series>>{_SELECTED % style.matchers}) by (<<.GroupBy>>)"
        yield _rule(_dcgm_series(style), _dcgm_labels(style), matches="^DCGM_FI_.+$", filters=filters, query=query)


def _of_dcgm(style: _Style, mapped: _MappedMetric, suffix: str, read_as: str) -> Json:
    value = re.sub(r"\[(\w+)\]", lambda match: read_as % f"{match[1]}{_SELECTED % style.matchers}", mapped.value)
    return _rule(
        _dcgm_series(style),
        _dcgm_labels(style),
        matches=f"^{mapped.series}$",
        named=f"{mapped.name}_{suffix}",
        query=f"{mapped.together}({value}) by (<<.GroupBy>>)",
    )


def _dcgm_series(style: _Style) -> str:
    return f'{{__name__=~"^DCGM_FI_.+",{style.pod}!=""{style.matchers}}}'


def _dcgm_labels(style: _Style) -> Mapping[str, str]:
    return {"Hostname": "node", style.pod: "pod", style.namespace: "namespace"}


def _exporter() -> Iterator[Json]:
    for together, key in (("avg", "isNot"), ("sum", "is")):
        filters = [{key: _OURS_SUM}]
        for suffix, read_as in (("current", "%s"), ("over_time", f"avg_over_time(%s[{_WINDOW}])")):
            yield _rule(
                '{__name__=~"^nvidia_gpu_.+",uuid!=""}',
                _OURS,
                matches="^nvidia_gpu_(.+)$",
                named=f"${{1}}_{suffix}",
                filters=filters,
                query=f"{together}({read_as % ('<<.Series>>' + _SELECTED % '')}) by (<<.GroupBy>>)",
            )
        yield _rule(
            '{__name__=~"^gpuscaler_gpu_.+",uuid!="",window=""}',
            _OURS,
            matches="^gpuscaler_(gpu_.+)$",
            filters=[*filters, {"isNot": "_(total|info|timestamp_seconds|containers|process_.+)$"}, {"isNot": "_process_"}],
            named="$1",
            query=f"""{together}(<<.Series>>{_SELECTED % ',window=""'}) by (<<.GroupBy>>)""",
        )
        for seconds in (15, 60):
            yield _rule(
                f'{{__name__=~"^gpuscaler_gpu_.+_(max|mean)$",window="{seconds}s"}}',
                _OURS,
                matches="^gpuscaler_(gpu_(.+)_(max|mean))$",
                named=f"${{1}}_{seconds}s",
                filters=[{key: "(_bytes|_watts)_(max|mean)$"}],
                query=f"""{together}(<<.Series>>{_SELECTED % f',window="{seconds}s"'}) by (<<.GroupBy>>)""",
            )


def _rule(
    series: str,
    labels: Mapping[str, str],
    *,
    matches: str,
    query: str,
    named: str = "$0",
    filters: list[dict[str, str]] | None = None,
) -> Json:
    rule: Json = {"seriesQuery": series}
    if filters:
        rule["seriesFilters"] = filters
    rule["resources"] = {"overrides": {label: {"resource": resource} for label, resource in labels.items()}}
    rule["name"] = {"matches": matches, "as": named}
    rule["metricsQuery"] = query
    return rule
