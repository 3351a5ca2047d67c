"""A model server with its Service and its budget, and its autoscaler by a metric of GPUs."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.classes import INFERENCE
from gpuscaler.generating.kubernetes.metrics import DUTY_CYCLE
from gpuscaler.generating.kubernetes.workloads import pods
from gpuscaler.generating.kubernetes.workloads.placing import Place, places
from gpuscaler.generating.kubernetes.workloads.trials import trial
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, Trial, objects_file
from gpuscaler.model.well_known import ZONE_LABELS

#: vLLM's own image with CUDA 12.8, by the digest that several public Dockerfiles name (2026-11-26).
IMAGE: Final = "vllm/vllm-openai:v0.11.0@sha256:014a95f21c9edf6abe0aea6b07353f96baa4ec291c427bb1176dc7c93a85845c"
_MODEL: Final = "Qwen/Qwen3-0.6B"
_NAME: Final = "inference"
_PORT: Final = 8000
#: Folders that pods fill again: losing them keeps no machine from being removed.
_CACHES: Final = "cache"


def inference_files(description: Description) -> Iterable[GeneratedFile]:
    place = places(description).get("inference")
    if place is None:
        return
    yield objects_file(
        "workloads/inference.yaml",
        "a model server with its Service and its disruption budget",
        _objects(description, place),
        trial=trial(description, place, "workloads/inference.yaml"),
    )
    if description.prometheus:
        yield objects_file(
            "workloads/hpa.yaml",
            "an autoscaler of the model server by the load of its GPUs",
            [_autoscaler(place)],
            trial=Trial(
                asks=f"It scales the model server, which must exist, from {place.pods} to at most {place.most} GPUs.",
                remove="kubectl delete --filename workloads/hpa.yaml",
            ),
        )


def _objects(description: Description, place: Place) -> Iterator[Tree]:
    yield because("Several replicas of one model server, which stand in for each other.", _deployment(description, place))
    yield because(
        "One address for all replicas that are ready.",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": pods.metadata(_NAME, place),
            "spec": {
                "selector": pods.labels(_NAME),
                "ports": because("Clients use port 80.", [{"name": "http", "port": 80, "targetPort": "http"}]),
            },
        },
    )
    yield because(
        "While machines are emptied, at least all replicas but one go on answering.",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": pods.metadata(_NAME, place),
            "spec": {
                "maxUnavailable": because(
                    "One replica may move at a time. A minimum that equals the number of replicas would keep every machine for ever.", 1
                ),
                "unhealthyPodEvictionPolicy": because(
                    "A replica that does not work may always go; otherwise it would block its machine.", "AlwaysAllow"
                ),
                "selector": {"matchLabels": pods.labels(_NAME)},
            },
        },
    )


def _deployment(description: Description, place: Place) -> Tree:
    volume, mount = pods.shared_memory(place)
    health = {"httpGet": {"path": "/health", "port": "http"}}
    container = {
        "name": "server",
        "image": because("A release by its digest, so that all replicas run the same program.", IMAGE),
        "args": because(
            "A small model that fits every GPU, in half precision because older GPUs have no bfloat16. Replace it by yours.",
            [f"--model={_MODEL}", f"--port={_PORT}", "--dtype=half", "--max-model-len=4096"],
        ),
        "env": because(
            "The model and compiled kernels are written here, since the user of the container has no home folder in this image.",
            [{"name": "HOME", "value": "/cache"}, {"name": "USER", "value": "server"}],
        ),
        "ports": [{"name": "http", "containerPort": because("The port of the server.", _PORT)}],
        "startupProbe": because(
            "Until the model is loaded, for up to 20 minutes, nothing counts as a failure.",
            {**health, "periodSeconds": 10, "failureThreshold": 120},
        ),
        "readinessProbe": because(
            "Clients reach a replica only while it answers. gpuscaler takes no replica away whose stand-in is not ready.",
            {**health, "periodSeconds": 5},
        ),
        "lifecycle": because(
            "Load balancers go on sending for a few seconds after a pod has begun to end.",
            {"preStop": {"exec": {"command": ["sleep", "10"]}}},
        ),
        "resources": pods.resources(place),
        "securityContext": pods.container_limits(),
        "volumeMounts": because("The model's files and shared memory.", [{"name": _CACHES, "mountPath": "/cache"}, mount]),
    }
    cache = because("The model's files are loaded again wherever the pod runs.", {"name": _CACHES, "emptyDir": {}})
    replicas = {} if description.prometheus else {"replicas": because("Two, so that one can move while the other answers.", place.pods)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": pods.metadata(_NAME, place),
        "spec": {
            **replicas,
            "strategy": because(
                "An update ends a replica before it starts the next: a replica more would need a GPU more, which the quota may not have.",
                {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            ),
            "selector": {"matchLabels": pods.labels(_NAME)},
            "template": {
                "metadata": {
                    "labels": pods.labels(_NAME),
                    "annotations": {
                        "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": because(
                            "The cache may be lost. Without this line, its volume would keep the machine.", _CACHES
                        )
                    },
                },
                "spec": {
                    "priorityClassName": because("People wait for the answers, so model servers come before training.", INFERENCE),
                    "terminationGracePeriodSeconds": because(
                        "The ten seconds of preStop, and requests that are being answered.", 25 if description.cloud == "azure" else 60
                    ),
                    "topologySpreadConstraints": because(
                        "Replicas are spread over the zones as far as machines can be had there. With DoNotSchedule, a zone without "
                        "capacity would keep them pending.",
                        [
                            {
                                "topologyKey": ZONE_LABELS[0],
                                "maxSkew": 1,
                                "whenUnsatisfiable": "ScheduleAnyway",
                                "labelSelector": {"matchLabels": pods.labels(_NAME)},
                            }
                        ],
                    ),
                    **pods.pod_spec(description, place, container, [cache, volume]),
                },
            },
        },
    }


def _autoscaler(place: Place) -> Tree:
    return {
        "apiVersion": because("The versions v2beta1 and v2beta2 are gone since Kubernetes 1.26.", "autoscaling/v2"),
        "kind": because("Kubernetes' own autoscaler of replicas.", "HorizontalPodAutoscaler"),
        "metadata": pods.metadata(_NAME, place),
        "spec": {
            "scaleTargetRef": because(
                "The Deployment, which has no number of replicas in its file: applying it would set back what the autoscaler did.",
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": _NAME},
            ),
            "minReplicas": because(
                "Two stand in for each other. Without any replica the metric would not exist, so 0 could not grow again.", place.pods
            ),
            "maxReplicas": because(
                "At most what the team's quota, gpuscaler's limits and the groups' sizes admit, and at most 8.", place.most
            ),
            "metrics": because(
                "A metric of pods: the autoscaler compares its mean over the replicas with the target.",
                [
                    {
                        "type": "Pods",
                        "pods": {
                            "metric": {"name": because("Average utilization of a pod's GPUs in percent, of the last sample.", DUTY_CYCLE)},
                            "target": because(
                                "At 60 % on average there is room for the minutes that a new machine takes.",
                                {"type": "AverageValue", "averageValue": "60"},
                            ),
                        },
                    }
                ],
            ),
            "behavior": {
                "scaleUp": because(
                    "Half a minute of need is enough, and the number at most doubles in a minute: utilization jumps within seconds.",
                    {
                        "stabilizationWindowSeconds": 30,
                        "policies": [
                            {"type": "Percent", "value": 100, "periodSeconds": 60},
                            {"type": "Pods", "value": 2, "periodSeconds": 60},
                        ],
                        "selectPolicy": "Max",
                    },
                ),
                "scaleDown": because(
                    "Only after five minutes without need. Without a window each pause would end machines that are bought again at once.",
                    {"stabilizationWindowSeconds": 300, "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
                ),
            },
        },
    }
