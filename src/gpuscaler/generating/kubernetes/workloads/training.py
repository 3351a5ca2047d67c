"""A training Job that saves its work, so that it may run on spot machines."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.classes import TRAINING, storage_class
from gpuscaler.generating.kubernetes.workloads import pods
from gpuscaler.generating.kubernetes.workloads.placing import Place, places
from gpuscaler.generating.kubernetes.workloads.trials import trial
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, objects_file

#: PyTorch's own image with CUDA 12.8, by the digest that several public Dockerfiles name (2026-11-26).
IMAGE: Final = "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime@sha256:417bd75df6365104c283ea4c1651fb3530d9eb5a4c2fafa51943cff2a94e6385"
#: The notices of AWS come two minutes ahead, those of Azure 30 seconds; some of that passes before the pod hears of it.
GRACE: Final = {"aws": 90, "azure": 25}
_PROGRAM: Final = """\
import os
import signal

import torch

saved = "/checkpoints/state.pt"
model = torch.nn.DataParallel(torch.nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
if os.path.exists(saved):
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    print("continues at step", step, flush=True)
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
while step < 100_000:
    optimizer.zero_grad()
    batch = torch.randn(256, 4096, device="cuda")
    (model(batch) - batch).square().mean().backward()
    optimizer.step()
    step += 1
    if ending or step % 1000 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, saved + ".part")
        os.replace(saved + ".part", saved)  # Whole or not at all, however the machine ends.
    if ending:
        raise SystemExit(143)
print("done", flush=True)
"""


def training_files(description: Description) -> Iterable[GeneratedFile]:
    place = places(description).get("training")
    if place is not None:
        yield objects_file(
            "workloads/training.yaml",
            "a training Job that saves its work and continues after an interruption",
            _objects(description, place),
            trial=trial(description, place, "workloads/training.yaml"),
        )


def _objects(description: Description, place: Place) -> Iterator[Tree]:
    yield because(
        "The example's program. An image of your own has the program in it, and needs no ConfigMap.",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pods.metadata("training", place), "data": {"train.py": _PROGRAM}},
    )
    yield because(
        "The checkpoint is on a volume of its own, because everything else ends with the machine.",
        pods.claim("training", place, storage_class(description), "20Gi"),
    )
    yield because("Training that starts, ends, and is repeated where it was interrupted.", _job(description, place))


def _job(description: Description, place: Place) -> Tree:
    volume, mount = pods.shared_memory(place)
    container = {
        "name": "train",
        "image": because("A release by its digest, so that a restart runs the same program.", IMAGE),
        "command": because(
            "The program saves every 1000 steps, when it is asked to end, and continues from what it finds.",
            ["python", "/program/train.py"],
        ),
        "env": pods.home(),
        "resources": pods.resources(place),
        "securityContext": pods.container_limits(),
        "volumeMounts": because(
            "The checkpoint, the program, and shared memory.",
            [{"name": "checkpoints", "mountPath": "/checkpoints"}, {"name": "program", "mountPath": "/program", "readOnly": True}, mount],
        ),
    }
    volumes = [
        because("The checkpoint.", {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "training"}}),
        because("The program.", {"name": "program", "configMap": {"name": "training"}}),
        volume,
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pods.metadata("training", place),
        "spec": {
            **job_rules(),
            "template": {
                "metadata": {
                    "labels": pods.labels("training"),
                    "annotations": {**restart_cost("At most the work since the last checkpoint is lost.", "5m"), **pods.market(place)},
                },
                "spec": {
                    **job_pod(description),
                    **pods.pod_spec(description, place, container, volumes),
                },
            },
        },
    }


def job_rules() -> dict[str, Tree]:
    """Return how a Job treats interruptions, and what becomes of it."""
    return {
        "backoffLimit": because("A program with a mistake is not repeated for ever on an expensive machine.", 3),
        "podFailurePolicy": because(
            "Pods that end because their machine ends do not count as failures, so that interruptions cannot use up the limit.",
            {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
        ),
        "ttlSecondsAfterFinished": because("The finished Job is deleted after a day, with its pods and their logs.", 86400),
    }


def restart_cost(lost: str, cost: str) -> dict[str, Tree]:
    """Return the annotation that allows moving a running Job. ``lost`` is the sentence that says what ``cost``, a duration, consists of."""
    why = f"{lost} Without this annotation gpuscaler never moves a running Job, so half-empty machines stay."
    return {"gpuscaler.io/restart-cost": because(why, cost)}


def job_pod(description: Description) -> dict[str, Tree]:
    return {
        "restartPolicy": because(
            "The Job makes a new pod, which may run on another machine. A policy for failures of pods is allowed only with Never.", "Never"
        ),
        "priorityClassName": because("Training gives way to model servers and notebooks.", TRAINING),
        "terminationGracePeriodSeconds": because(
            "The time from SIGTERM to SIGKILL, for a program that saves its work. The cloud announces the end of a spot machine "
            + ("two minutes" if description.cloud == "aws" else "30 seconds")
            + " ahead, so a longer time would be cut.",
            GRACE[description.cloud],
        ),
    }
