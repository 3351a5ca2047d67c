"""The built-in rules: metrics of our exporter, of dcgm-exporter with various labels, and of model servers."""

from re import fullmatch

import pytest
import yaml
from tests.metrics.rules.making import NODE, POD, series

from gpuscaler.exporter.fields import FIELDS, WINDOWS
from gpuscaler.metrics.rules.builtin import builtin_rules, builtin_rules_text, is_exported_by_replicas
from gpuscaler.metrics.rules.discovery import Discovery
from gpuscaler.metrics.rules.promql import Selector, parse
from gpuscaler.metrics.rules.reading import read_rules

RULES = builtin_rules()
OURS = ("node_name", "pod_name", "namespace_name", "uuid", "minor_number")
HONORED = ("pod", "namespace", "container", "Hostname", "UUID")
RENAMED = ("exported_pod", "exported_namespace", "pod", "namespace", "Hostname", "UUID")
OLD = ("pod_name", "pod_namespace", "container_name", "UUID")
#: Metrics of the write-up, with those of dcgm-exporter that they are made of.
MAPPED = {
    "duty_cycle": "DCGM_FI_DEV_GPU_UTIL",
    "memory_used_bytes": "DCGM_FI_DEV_FB_USED",
    "memory_total_bytes": "DCGM_FI_DEV_FB_FREE",
    "power_usage_milliwatts": "DCGM_FI_DEV_POWER_USAGE",
    "temperature_celsius": "DCGM_FI_DEV_GPU_TEMP",
}


def discover(*series: dict[str, str]) -> Discovery:
    """The metrics made of these series. As in Prometheus, each rule gets the series that match its series query."""
    return RULES.discover({query: [labels for labels in series if is_selected(query, labels)] for query in RULES.series_queries})


def is_selected(query: str, labels: dict[str, str]) -> bool:
    selector = parse(query)
    assert isinstance(selector, Selector)
    for matcher in selector.matchers:
        value = labels.get(matcher.label, "")
        same = fullmatch(matcher.value, value) is not None if "~" in matcher.operator else value == matcher.value
        if same != (matcher.operator in ("=", "=~")):
            return False
    return True


def query_of(discovery: Discovery, metric: str, resource: str = "pods") -> str:
    origin = discovery.custom[resource, metric]
    assert origin.resource is not None
    return origin.rule.query(origin.series, resource=origin.resource, names=["x"])


def test_all_built_in_rules_are_valid_without_notes() -> None:
    assert (RULES.problems, RULES.notes) == ((), ())


def test_built_in_rules_written_to_a_file_are_read_back_unchanged() -> None:
    assert len(read_rules(builtin_rules_text()).rules) == len(yaml.safe_load(builtin_rules_text())["rules"])


@pytest.mark.parametrize("key", [key for key, what in FIELDS.items() if what.metric.startswith("nvidia_gpu_")])
def test_the_duty_cycle_metrics_are_served_with_current_values_and_over_three_minutes(key: str) -> None:
    discovery = discover(series(FIELDS[key].metric, *OURS))
    together = "sum" if key.endswith(("_bytes", "_milliwatts")) else "avg"
    metric = FIELDS[key].metric
    assert query_of(discovery, f"{key}_current") == f'{together}({metric}{{pod_name="x"}}) by (pod_name)'
    assert query_of(discovery, f"{key}_over_time") == f'{together}(avg_over_time({metric}{{pod_name="x"}}[3m])) by (pod_name)'
    assert {resource for resource, _ in discovery.custom} == {"pods", "nodes", "namespaces"}


@pytest.mark.parametrize(
    "metric", [what.metric for what in FIELDS.values() if what.kind == "gauge" and what.metric.startswith("gpuscaler_gpu_")]
)
def test_every_other_gauge_of_our_exporter_is_served_under_its_name(metric: str) -> None:
    discovery = discover(series(metric, *OURS))
    assert ("pods", metric.removeprefix("gpuscaler_")) in discovery.custom


@pytest.mark.parametrize("seconds", WINDOWS)
def test_windows_of_our_exporter_are_separate_metrics(seconds: int) -> None:
    discovery = discover({**series("gpuscaler_gpu_duty_cycle_ratio_max", *OURS), "window": f"{seconds}s"})
    assert query_of(discovery, f"gpu_duty_cycle_ratio_max_{seconds}s") == (
        f'avg(gpuscaler_gpu_duty_cycle_ratio_max{{pod_name="x",window="{seconds}s"}}) by (pod_name)'
    )
    assert [metric for _, metric in discovery.custom] == [f"gpu_duty_cycle_ratio_max_{seconds}s"] * 3


def test_power_over_a_window_is_summed_over_gpus() -> None:
    discovery = discover({**series("gpuscaler_gpu_power_watts_mean", *OURS), "window": "60s"})
    assert query_of(discovery, "gpu_power_watts_mean_60s").startswith("sum(")


def test_metrics_of_single_processes_and_counters_are_not_served() -> None:
    names = ("gpuscaler_gpu_process_sm_ratio", "gpuscaler_gpu_energy_joules_total", "gpuscaler_gpu_allocation_info")
    assert discover(*(series(name, *OURS) for name in names)).custom == {}


@pytest.mark.parametrize(
    ("labels", "pod", "more"),
    [(HONORED, "pod", ',exported_pod=""'), (RENAMED, "exported_pod", ""), (OLD, "pod_name", "")],
)
def test_dcgm_exporter_metrics_are_served_with_any_style_of_labels(labels: tuple[str, ...], pod: str, more: str) -> None:
    discovery = discover(*(series(name, *labels) for name in MAPPED.values()))
    assert query_of(discovery, "DCGM_FI_DEV_GPU_UTIL") == f'avg(DCGM_FI_DEV_GPU_UTIL{{{pod}="x"{more}}}) by ({pod})'
    assert query_of(discovery, "memory_used_bytes_current") == f'sum(1048576 * DCGM_FI_DEV_FB_USED{{{pod}="x"{more}}}) by ({pod})'
    for name in MAPPED:
        for suffix in ("current", "over_time"):
            assert f'{pod}="x"' in query_of(discovery, f"{name}_{suffix}")


def test_the_profiling_metric_of_dcgm_gives_pods_on_mig_devices_a_duty_cycle() -> None:
    discovery = discover(series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", *HONORED))
    assert "100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE{" in query_of(discovery, "duty_cycle_current")


def test_renamed_labels_take_precedence_over_those_of_the_exporters_own_pod() -> None:
    # An idle GPU has no exported_pod, so the label pod, which is the exporter's, looks like a user of the GPU.
    discovery = discover(series("DCGM_FI_DEV_GPU_UTIL", *RENAMED), series("DCGM_FI_DEV_GPU_UTIL", "pod", "namespace", "Hostname"))
    assert 'exported_pod="x"' in query_of(discovery, "DCGM_FI_DEV_GPU_UTIL")
    assert 'exported_pod="x"' in query_of(discovery, "duty_cycle_current")


def test_our_exporter_takes_precedence_over_dcgm_exporter() -> None:
    discovery = discover(series("nvidia_gpu_duty_cycle", *OURS), series("DCGM_FI_DEV_GPU_UTIL", *RENAMED))
    assert "nvidia_gpu_duty_cycle" in query_of(discovery, "duty_cycle_current")
    assert ("pods", "DCGM_FI_DEV_GPU_UTIL") in discovery.custom


@pytest.mark.parametrize(
    ("name", "metric", "together"),
    [
        ("vllm:num_requests_waiting", "vllm_num_requests_waiting", "sum"),
        ("vllm:num_requests_running", "vllm_num_requests_running", "sum"),
        ("vllm:kv_cache_usage_perc", "vllm_kv_cache_usage_perc", "avg"),
        ("vllm:gpu_cache_usage_perc", "vllm_gpu_cache_usage_perc", "avg"),
        ("sglang:num_queue_reqs", "sglang_num_queue_reqs", "sum"),
        ("sglang:token_usage", "sglang_token_usage", "avg"),
        ("tgi_queue_size", "tgi_queue_size", "sum"),
        ("nv_inference_pending_request_count", "nv_inference_pending_request_count", "sum"),
    ],
)
def test_queue_metrics_of_model_servers_are_served_per_pod_and_in_total(name: str, metric: str, together: str) -> None:
    discovery = discover(series(name, "pod", "namespace", "model_name"))
    assert query_of(discovery, metric) == f'{together}({name}{{pod="x"}}) by (pod)'
    origin = discovery.external[metric]
    assert origin.rule.external_query(origin.series, namespace="ml") == f'{together}({name}{{namespace="ml"}})'
    assert is_exported_by_replicas(metric)
    assert is_exported_by_replicas(name)


def test_the_queue_metric_of_a_gateway_exists_without_replicas() -> None:
    discovery = discover(
        series("inference_pool_average_queue_size", "namespace", "name"), series("inference_extension_flow_control_queue_size")
    )
    for metric, together in (("inference_pool_average_queue_size", "avg"), ("inference_extension_flow_control_queue_size", "sum")):
        origin = discovery.external[metric]
        assert origin.rule.external_query(origin.series, namespace="ml").startswith(f"{together}({metric}{{")
        assert not is_exported_by_replicas(metric)
    for metric in ("duty_cycle_current", "DCGM_FI_DEV_GPU_UTIL", "nvidia_gpu_duty_cycle", "gpuscaler_gpu_power_watts"):
        assert is_exported_by_replicas(metric)
    for metric in ("jobs_waiting_current", "gpu_jobs_waiting", "gpu_queue_length"):
        assert not is_exported_by_replicas(metric)


def test_every_built_in_rule_uses_one_query_for_all_pods_or_nodes_of_the_cluster() -> None:
    discovery = discover(series("nvidia_gpu_duty_cycle", *OURS))
    for metric in ("duty_cycle_current", "duty_cycle_over_time"):
        rule = discovery.custom["pods", metric].rule
        wide = rule.wide_query("nvidia_gpu_duty_cycle", resource=POD)
        assert wide.endswith("by (pod_name,namespace_name)")
        assert rule.wide_query("nvidia_gpu_duty_cycle", resource=NODE).endswith("by (node_name)")
