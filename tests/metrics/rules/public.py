"""Rules like those of public projects, with matching series (read November 2026).

Each name says where the rule is from.
"""

from typing import Any

Json = dict[str, Any]

_POD = {"pod": {"resource": "pod"}, "namespace": {"resource": "namespace"}}

PUBLIC: dict[str, Json] = {
    # docs/config-walkthrough.md of prometheus-adapter.
    "walkthrough": {
        "seriesQuery": '{__name__=~"^http_requests_.*_total",kubernetes_namespace!="",kubernetes_pod_name!=""}',
        "resources": {
            "overrides": {"kubernetes_namespace": {"resource": "namespace"}, "kubernetes_pod_name": {"resource": "pod"}},
        },
        "name": {"matches": "^(.*)_total", "as": "${1}_per_second"},
        "metricsQuery": "sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)",
    },
    # The defaults of the Helm chart and of kube-prometheus.
    "containers": {
        "seriesQuery": '{__name__=~"^container_.*",container!="POD",namespace!="",pod!=""}',
        "seriesFilters": [{"isNot": "^container_.*_seconds_total$"}],
        "resources": {"overrides": _POD},
        "name": {"matches": "^container_(.*)_total$", "as": ""},
        "metricsQuery": 'sum(rate(<<.Series>>{<<.LabelMatchers>>,container!="POD"}[5m]))\nby (<<.GroupBy>>)',
    },
    "anything": {
        "seriesQuery": '{namespace!="",__name__!~"^container_.*"}',
        "seriesFilters": [{"isNot": ".*_total$"}],
        "resources": {"template": "<<.Resource>>"},
        "name": {"matches": "", "as": ""},
        "metricsQuery": "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    },
    # Alibaba Cloud's write-up on HPA with GPU metrics (2018).
    "write-up": {
        "seriesQuery": '{uuid!=""}',
        "resources": {
            "overrides": {"node_name": {"resource": "node"}, "pod_name": {"resource": "pod"}, "namespace_name": {"resource": "namespace"}}
        },
        "name": {"matches": "^nvidia_gpu_(.*)$", "as": "${1}_over_time"},
        "metricsQuery": "ceil(avg_over_time(<<.Series>>{<<.LabelMatchers>>}[3m]))",
    },
    # Rules for dcgm-exporter if Prometheus does not honor labels.
    "dcgm": {
        "seriesQuery": '{__name__=~"^DCGM_FI.*",exported_pod!=""}',
        "resources": {"overrides": {"exported_namespace": {"resource": "namespace"}, "exported_pod": {"resource": "pod"}}},
        "name": {"matches": "DCGM_FI_DEV_(.*)", "as": "gpu_$1"},
        "metricsQuery": "avg by (exported_namespace, <<.GroupBy>>) "
        '(round(avg_over_time(<<.Series>>{exported_pod!="",<<.LabelMatchers>>}[1m])))',
    },
    # The production stack of vLLM.
    "vllm": {
        "seriesQuery": '{__name__=~"^vllm:num_requests_waiting$"}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
        "name": {"matches": "", "as": "vllm_num_requests_waiting"},
        "metricsQuery": "sum by(namespace) (vllm:num_requests_waiting)",
    },
    # Hazelcast: a ratio of two series.
    "share": {
        "seriesQuery": '{__name__=~"jvm_memory_bytes_(used|max)",area="heap"}',
        "seriesFilters": [{"is": "^jvm_memory_bytes_(used|max)$"}],
        "resources": {"overrides": {"kubernetes_pod_name": {"resource": "pod"}, "kubernetes_namespace": {"resource": "namespace"}}},
        "name": {"matches": "^jvm_memory_bytes_(used|max)$", "as": "on_heap_ratio"},
        "metricsQuery": "max(jvm_memory_bytes_used{<<.LabelMatchers>>}/jvm_memory_bytes_max{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    },
    # Codefresh: objects by values of labels.
    "values": {
        "seriesQuery": 'kube_service_info{service=~".*api.*"}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"matches": "^(.*)$", "as": "requests_per_pod"},
        "metricsQuery": "sum(rate(requests{<<.LabelMatchers>>}[2m])) / on() "
        "replicas{deployment='<<index .LabelValuesByName \"pod\">>-base',"
        "namespace='<<index .LabelValuesByName \"namespace\">>'}\n",
    },
    # Deckhouse: external metrics with a name extracted from that of the series.
    "external": {
        "seriesQuery": '{__name__=~"kube_adapter_metric_.+"}',
        "resources": {"namespaced": False},
        "name": {"matches": "^kube_adapter_metric_(.+)$", "as": "${1}"},
        "metricsQuery": 'label_replace(<<.Series>>{<<.LabelMatchers>>}, "__name__", "$1", "__name__", "^kube_adapter_metric_(.*)$")',
    },
    # From issues: all labels except the namespace's, joined by hand.
    "joined": {
        "seriesQuery": 'queue_depth{namespace!=""}',
        "resources": {"template": "kube_<<.Resource>>", "overrides": _POD},
        "metricsQuery": 'max(<<.Series>>{<<range $k, $v := .LabelValuesByName>><<if ne $k `namespace`>><<$k>>=~"<<$v>>",<<end>>'
        "<<- end>>}) by (<<range $i, $l := .GroupBySlice>><<if $i>>,<<end>><<$l>><<end>>)",
    },
}

SERIES: list[Json] = [
    {"Name": name, "Labels": dict.fromkeys(labels.split(), "v")}
    for name, labels in (
        ("http_requests_served_total", "kubernetes_namespace kubernetes_pod_name code"),
        ("container_network_receive_bytes_total", "namespace pod interface"),
        ("container_cpu_usage_seconds_total", "namespace pod container"),
        ("queue_depth", "namespace pod service node job"),
        ("nvidia_gpu_temperature_celsius", "node_name pod_name namespace_name uuid"),
        ("DCGM_FI_DEV_GPU_UTIL", "exported_namespace exported_pod pod namespace Hostname"),
        ("vllm:num_requests_waiting", "namespace pod model_name"),
        ("jvm_memory_bytes_used", "kubernetes_pod_name kubernetes_namespace area"),
        ("kube_service_info", "namespace service"),
        ("kube_adapter_metric_backlog", "queue"),
    )
]
