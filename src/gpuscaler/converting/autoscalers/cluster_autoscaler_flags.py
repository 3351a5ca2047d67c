"""The flags of Cluster Autoscaler that have no counterpart in the run file, each with what happens instead.

Source: cluster-autoscaler/config/flags/flags.go and cluster-autoscaler/main.go of kubernetes/autoscaler, releases 1.20 to 1.35, read in
November 2026; former flags are those of older releases. :mod:`.cluster_autoscaler` has the flags that do have a counterpart.
"""

from collections.abc import Mapping
from typing import Final

from gpuscaler.converting.autoscalers.draft import NOT_NEEDED, OWN, SAME, UNSUPPORTED, Answer, Row, answers_by_name

_LOG: Final = "log lines are JSON on standard error; log.level sets how much is logged"
_UNREADY: Final = (
    "while more than 3 nodes and more than 45 % of all nodes are not Ready, no machine is removed because it is idle, too expensive or not "
    "Ready; unlike Cluster Autoscaler, gpuscaler goes on buying"
)
_SYSTEM_PODS: Final = (
    "pods in kube-system without a PodDisruptionBudget keep their nodes for good, unless safe-to-evict allows their eviction; newer "
    "releases of Cluster Autoscaler evict them after --blocking-system-pod-distruption-timeout, an hour by default"
)
_TO_STANDARD_ERROR: Final = "logtostderr alsologtostderr"
_ANSWERS: Final = (
    Row(OWN, _LOG, _TO_STANDARD_ERROR),
    Row(OWN, _LOG, "vmodule stderrthreshold"),
    # What a plan decides by cost.
    Row(NOT_NEEDED, "the mix of machines is solved for the least cost, so that groups need no estimate of their own", "estimator"),
    Row(
        NOT_NEEDED,
        "a node is removed where its pods fit elsewhere for less, whatever its utilization is",
        "scale-down-utilization-threshold scale-down-gpu-utilization-threshold ignore-daemonsets-utilization "
        "ignore-mirror-pods-utilization",
    ),
    Row(
        NOT_NEEDED,
        "groups that differ by zone only are balanced where the spread of pods requires it, and otherwise bought by price and capacity",
        "balance-similar-node-groups balancing-ignore-label balancing-label memory-difference-ratio max-free-difference-ratio "
        "max-allocatable-difference-ratio",
    ),
    Row(
        NOT_NEEDED,
        "all nodes are candidates in every plan, and a plan has a limit of its own for the time that it takes",
        "scale-down-non-empty-candidates-count scale-down-candidates-pool-ratio scale-down-candidates-pool-min-count "
        "scale-down-simulation-timeout unremovable-node-recheck-timeout max-binpacking-time max-nodegroup-binpacking-duration "
        "max-nodes-per-scaleup fastpath-binpacking-enabled pod-injection-limit cluster-snapshot-parallelism predicate-parallelism "
        "frequent-loops-enabled node-deletion-candidate-ttl max-autoprovisioned-node-group-count",
    ),
    Row(NOT_NEEDED, "orders to several groups are in progress at the same time", "parallel-scale-up async-node-groups"),
    Row(NOT_NEEDED, "nodes get no PreferNoSchedule taints", "max-bulk-soft-taint-count max-bulk-soft-taint-time"),
    # What gpuscaler decides itself.
    Row(
        OWN,
        "a machine is removed when it has been idle for idle_after, whatever happened elsewhere; pace.consolidate is the least time "
        "between two searches for cheaper places",
        "scale-down-delay-after-add scale-down-delay-after-delete scale-down-delay-after-failure scale-down-delay-type-local",
    ),
    Row(
        OWN,
        "an offering that fails is not used for a time that grows with each failure, and others are used meanwhile",
        "initial-node-group-backoff-duration max-node-group-backoff-duration node-group-backoff-reset-timeout",
    ),
    Row(
        OWN,
        "pods get their own terminationGracePeriodSeconds, and an eviction that is refused is tried again",
        "max-graceful-termination-sec max-pod-eviction-time drain-priority-config",
    ),
    Row(
        OWN,
        "a node is closed by a taint before its machine ends, and the machine ends once its pods have terminated",
        "node-delete-delay-after-taint dynamic-node-delete-delay-after-taint-enabled node-deletion-delay-timeout "
        "node-deletion-batcher-interval parallel-drain",
    ),
    Row(
        OWN,
        "machines that do not register or fail are ended by the times in pace, in a group at its minimum, too",
        "force-delete-unregistered-nodes force-delete-failed-nodes unregistered-node-removal-time",
    ),
    Row(
        OWN,
        "pods of DaemonSets are evicted last, and end with the machine",
        "daemonset-eviction-for-empty-nodes daemonset-eviction-for-occupied-nodes",
    ),
    Row(
        OWN,
        "its Lease is called gpuscaler, in its own namespace; leader_election sets times and name, and the chart runs two copies",
        "leader-elect leader-elect-lease-duration leader-elect-renew-deadline leader-elect-retry-period leader-elect-resource-lock "
        "leader-elect-resource-name leader-elect-resource-namespace",
    ),
    Row(OWN, "its namespace is that of the chart's release", "namespace"),
    Row(OWN, "gpuscaler status prints its status", "write-status-configmap status-config-map-name"),
    Row(OWN, "metrics and health are served on port 8080; http.address sets another", "address profiling emit-per-nodegroup-metrics"),
    Row(
        OWN,
        "200 requests per second at most, of which few are needed, since objects are watched; rate_limit sets another limit",
        "kube-client-qps kube-client-burst",
    ),
    Row(OWN, "the API server is found as in any pod", "kubernetes kubeconfig kube-api-content-type user-agent"),
    Row(
        OWN,
        _LOG,
        "v log-backtrace-at log-dir log-file log-file-max-size log-flush-frequency "
        "log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format one-output "
        "add-dir-header skip-headers skip-log-headers record-duplicated-events debugging-snapshot-enabled",
    ),
    Row(
        OWN,
        "its features are settings of their own, and all of them are stable",
        "feature-gates help version",
    ),
    Row(OWN, "an error does not restart it: it is reported in the status, and tried again", "max-failing-time"),
    Row(
        OWN,
        "templates of nodes are learned from the account and from the newest nodes of each pool",
        "node-info-cache-expire-time scale-from-unschedulable status-taint enable-csi-node-aware-scheduling",
    ),
    Row(OWN, "what DaemonSets request is subtracted from a new machine before pods are planned onto it", "force-ds"),
    # What is not there.
    Row(
        UNSUPPORTED,
        "no limit counts cores or memory; limits has machines, GPUs, dollars per hour and machines per minute",
        "cores-total memory-total",
    ),
    Row(
        UNSUPPORTED,
        "a delay is set on the pod itself, with the annotation cluster-autoscaler.kubernetes.io/pod-scale-up-delay; pace.debounce and "
        "pace.patience set how long a plan waits for more pods",
        "new-pod-scale-up-delay",
    ),
    Row(
        UNSUPPORTED,
        "ProvisioningRequests are not read; a gang of pods gets its machines together or not at all",
        "enable-provisioning-requests provisioning-request-initial-backoff-time provisioning-request-max-backoff-time "
        "provisioning-request-max-backoff-cache-size check-capacity-batch-processing check-capacity-provisioning-request-max-batch-size "
        "check-capacity-provisioning-request-batch-timebox check-capacity-processor-instance",
    ),
    Row(
        UNSUPPORTED,
        "no machine is bought for a pod because of a ResourceClaim",
        "enable-dynamic-resource-allocation",
    ),
    Row(
        UNSUPPORTED,
        "CapacityBuffers are not read; spare of a pool keeps empty machines or unused GPUs",
        "capacity-buffer-controller-enabled capacity-buffer-pod-injection-enabled capacity-quotas-enabled",
    ),
    Row(UNSUPPORTED, "pods are not counted before they exist; spare of a pool keeps machines ready", "enable-proactive-scaleup"),
    Row(
        UNSUPPORTED, "the filters of kube-scheduler apply with their defaults; with others, set steering: nominate", "scheduler-config-file"
    ),
    Row(UNSUPPORTED, "groups are not created, only scaled", "node-autoprovisioning-enabled"),
    Row(UNSUPPORTED, "a PodDisruptionBudget keeps pods of a workload with few replicas", "min-replica-count"),
    # Of other clouds.
    Row(
        NOT_NEEDED,
        "it concerns another cloud",
        "gce-concurrent-refreshes gce-mig-instances-min-refresh-wait-time bulk-mig-instances-listing-enabled "
        "gce-expander-ephemeral-storage-support clusterapi-cloud-config-authoritative regional",
    ),
    Row(NOT_NEEDED, "instance types are read from the account, and cached", "aws-use-static-instance-list"),
    Row(
        NOT_NEEDED,
        "credentials come from the identity of the ServiceAccount, and the place of the pools is below aws or azure in the run file",
        "cloud-config",
    ),
    Row(NOT_NEEDED, "no other program is asked where to buy", "grpc-expander-cert grpc-expander-url"),
    # For values without an answer of their own below.
    Row(UNSUPPORTED, _UNREADY, "ok-total-unready-count max-total-unready-percentage"),
    Row(UNSUPPORTED, _SYSTEM_PODS, "blocking-system-pod-distruption-timeout"),
)
#: Answers by the value of the flag.
_BY_VALUE: Final[Mapping[tuple[str, str], Answer]] = {
    ("scale-down-enabled", "true"): Answer(SAME, "machines are removed"),
    ("scale-down-unready-enabled", "true"): Answer(SAME, "machines whose nodes are not Ready are ended"),
    ("scale-up-from-zero", "true"): Answer(SAME, "machines are bought while no node is Ready, too"),
    ("scale-up-from-zero", "false"): Answer(
        UNSUPPORTED, "machines are bought while no node is Ready, too; a pool with max: 0 buys nothing"
    ),
    ("cordon-node-before-terminating", "true"): Answer(SAME, "a node is closed before its machine ends"),
    ("cordon-node-before-terminating", "false"): Answer(OWN, "a node is always closed before its machine ends"),
    ("enforce-node-group-min-size", "true"): Answer(SAME, "machines are bought up to the minimum of a pool"),
    ("enforce-node-group-min-size", "false"): Answer(
        UNSUPPORTED, "machines are bought up to the minimum of a pool, also without a pod for them; min of the pool sets another"
    ),
    ("skip-nodes-with-local-storage", "true"): Answer(SAME, "pods with local storage keep their nodes"),
    ("skip-nodes-with-local-storage", "false"): Answer(
        UNSUPPORTED,
        'pods with local storage keep their nodes, unless they have the annotation cluster-autoscaler.kubernetes.io/safe-to-evict: "true" '
        "or …/safe-to-evict-local-volumes",
    ),
    ("skip-nodes-with-system-pods", "true"): Answer(OWN, _SYSTEM_PODS),
    ("skip-nodes-with-system-pods", "false"): Answer(
        UNSUPPORTED, "pods in kube-system keep their nodes, unless a PodDisruptionBudget or safe-to-evict allows their eviction"
    ),
    ("skip-nodes-with-custom-controller-pods", "true"): Answer(
        UNSUPPORTED,
        "pods of controllers that Kubernetes itself does not have may be moved, too, unless they have the annotation "
        'cluster-autoscaler.kubernetes.io/safe-to-evict: "false"',
    ),
    ("skip-nodes-with-custom-controller-pods", "false"): Answer(SAME, "pods of any controller may be moved"),
    ("ok-total-unready-count", "3"): Answer(OWN, _UNREADY),
    ("max-total-unready-percentage", "45"): Answer(OWN, _UNREADY),
}
_BY_NAME: Final = answers_by_name(_ANSWERS)
#: Flags without a value, which take none from the next word.
BOOLEANS: Final = frozenset(_TO_STANDARD_ERROR.split()) | frozenset(
    "add-dir-header async-node-groups aws-use-static-instance-list balance-similar-node-groups "
    "bulk-mig-instances-listing-enabled capacity-buffer-controller-enabled capacity-buffer-pod-injection-enabled capacity-quotas-enabled "
    "check-capacity-batch-processing clusterapi-cloud-config-authoritative cordon-node-before-terminating "
    "daemonset-eviction-for-empty-nodes daemonset-eviction-for-occupied-nodes debugging-snapshot-enabled "
    "dynamic-node-delete-delay-after-taint-enabled emit-per-nodegroup-metrics enable-csi-node-aware-scheduling "
    "enable-dynamic-resource-allocation enable-proactive-scaleup enable-provisioning-requests enforce-node-group-min-size "
    "fastpath-binpacking-enabled force-delete-failed-nodes force-delete-unregistered-nodes force-ds frequent-loops-enabled "
    "gce-expander-ephemeral-storage-support help ignore-daemonsets-utilization ignore-mirror-pods-utilization leader-elect "
    "log-json-split-stream log-text-split-stream node-autoprovisioning-enabled one-output parallel-drain parallel-scale-up "
    "profiling record-duplicated-events regional scale-down-delay-type-local scale-down-enabled scale-down-unready-enabled "
    "scale-from-unschedulable scale-up-from-zero skip-headers skip-log-headers skip-nodes-with-custom-controller-pods "
    "skip-nodes-with-local-storage skip-nodes-with-system-pods version write-status-configmap".split()
)

#: Defaults that gpuscaler cannot have, by the flags: they change what happens, so they are named where the flag is not set.
DIFFERING_DEFAULTS: Final[Mapping[str, str]] = {
    "enforce-node-group-min-size": "false",
    "skip-nodes-with-custom-controller-pods": "true",
    "skip-nodes-with-system-pods": "true",
    "max-total-unready-percentage": "45",
}


def answer_of(name: str, value: str) -> Answer | None:
    """Why the flag is left out with that value; None if it is not known, or has a counterpart."""
    return _BY_VALUE.get((name, value)) or _BY_NAME.get(name)


def answered_flags() -> frozenset[str]:
    """The names of all flags that have an answer for some value."""
    return frozenset(_BY_NAME) | {name for name, _ in _BY_VALUE}
