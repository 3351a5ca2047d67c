"""The Job of the smoke test. It stays within its limits even if nothing is left that follows it."""

import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.well_known import HOSTNAME

#: The label of the Job and its pod; its value is the Job's name.
LABEL: Final = "gpuscaler.io/smoke-test"
GPU: Final = "nvidia.com/gpu"
#: Small, without credentials, and with the C library that nvidia-smi needs, which the container runtime puts into containers with GPUs.
#: Source: NVIDIA's sample workload is this image with this command.
IMAGE: Final = "public.ecr.aws/docker/library/ubuntu:24.04"
COMMAND: Final = ("nvidia-smi", "-L")
#: The command for devices of other makers.
PLAIN_COMMAND: Final = ("sleep", "1")
#: A finished Job is deleted after this many seconds if nothing else deletes it.
KEPT_SECONDS: Final = 300
#: The seconds that the pod runs in a simulated cluster.
SIMULATED_SECONDS: Final = 5
#: The taints that pools of GPUs usually have, where no run file tells which they have: the resource's name, and AKS' own example.
USUAL_TOLERATIONS: Final = (Toleration(GPU, "Exists"), Toleration("sku", "Equal", "gpu", "NoSchedule"))


class SmokeTest(Struct, frozen=True, kw_only=True):
    """The settings of a smoke test. ``avoided`` are host names of nodes on which it must not run; ``deadline`` is in seconds."""

    name: str
    namespace: str = "default"
    image: str = IMAGE
    command: tuple[str, ...] = ()
    resource: str = GPU
    tolerations: tuple[Toleration, ...] = USUAL_TOLERATIONS
    node_selector: Mapping[str, str] = {}
    avoided: tuple[str, ...] = ()
    deadline: float = 1800.0

    @property
    def removal_command(self) -> str:
        """The command that removes what is left of it."""
        return shlex.join(("kubectl", "delete", "job,pod", "--namespace", self.namespace, "--selector", f"{LABEL}={self.name}"))


def job_of(test: SmokeTest) -> dict[str, Any]:
    """The Job, as the API takes it.

    It has no owner, makes one try, ends at the deadline, and is deleted some minutes after its end: nothing stays even if the command is
    killed. It satisfies the Pod Security Standard "restricted".
    """
    labels = {LABEL: test.name, "app.kubernetes.io/managed-by": "gpuscaler"}
    annotations = {
        # Its pod must keep no machine.
        "gpuscaler.io/disruption": "allow",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
        "gpuscaler.io/run-for": f"{SIMULATED_SECONDS}s",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": test.name, "namespace": test.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, math.ceil(test.deadline)),
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod_spec(test)},
        },
    }


def _pod_spec(test: SmokeTest) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "smoke-test",
                "image": test.image,
                "command": list(test.command or (COMMAND if test.resource.startswith("nvidia.com/") else PLAIN_COMMAND)),
                "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {test.resource: "1"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                # The last lines of its log are the reason of a failure.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "tolerations": [_toleration(toleration) for toleration in test.tolerations],
    }
    if test.node_selector:
        spec["nodeSelector"] = dict(test.node_selector)
    if test.avoided:
        expression = {"key": HOSTNAME, "operator": "NotIn", "values": list(test.avoided)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return spec


def _toleration(toleration: Toleration) -> dict[str, str]:
    fields = {name: getattr(toleration, name) for name in ("key", "operator", "value", "effect")}
    return {name: value for name, value in fields.items() if value}


def tolerations_of(taints: Iterable[Taint]) -> tuple[Toleration, ...]:
    """Tolerations of exactly these taints."""
    return tuple(dict.fromkeys(Toleration(taint.key, "Equal", taint.value, taint.effect) for taint in taints))
