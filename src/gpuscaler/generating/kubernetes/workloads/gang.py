"""A gang: pods that train together and are placed together or not at all."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.workloads import pods
from gpuscaler.generating.kubernetes.workloads.placing import Place, places
from gpuscaler.generating.kubernetes.workloads.training import IMAGE, job_pod, job_rules, restart_cost
from gpuscaler.generating.kubernetes.workloads.trials import trial
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, objects_file

_NAME: Final = "gang"
_PORT: Final = 29500
_PROGRAM: Final = """\
import os

import torch
import torch.distributed

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4096, 4096).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10_000):
    optimizer.zero_grad()
    batch = torch.randn(256, 4096, device="cuda")
    (model(batch) - batch).square().mean().backward()
    optimizer.step()
print("rank", torch.distributed.get_rank(), "is done", flush=True)
torch.distributed.destroy_process_group()
"""


def gang_files(description: Description) -> Iterable[GeneratedFile]:
    place = places(description).get("gang")
    if place is not None:
        yield objects_file(
            "workloads/gang.yaml",
            f"{place.pods} pods that train together, on machines of one zone",
            _objects(description, place),
            trial=trial(description, place, "workloads/gang.yaml"),
        )


def _objects(description: Description, place: Place) -> Iterator[Tree]:
    yield because(
        "The example's program. It saves nothing, because it is short; a longer one saves like the training Job, on a shared file system.",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pods.metadata(_NAME, place), "data": {"train.py": _PROGRAM}},
    )
    yield because(
        "Gives each pod a name in DNS, gang-0.gang and so on, by which the members find the first one.",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": pods.metadata(_NAME, place),
            "spec": {
                "clusterIP": because("No address of its own: names lead to the pods themselves.", "None"),
                "publishNotReadyAddresses": because("Members look for each other before they are ready.", True),
                "selector": pods.labels(_NAME),
                "ports": [{"name": "rendezvous", "port": because("The port at which the first member waits for the others.", _PORT)}],
            },
        },
    )
    yield because("A Job with one index for each member.", _job(description, place))


def _job(description: Description, place: Place) -> Tree:
    volume, mount = pods.shared_memory(place)
    words = (
        f"exec torchrun --nnodes={place.pods} --nproc-per-node={place.gpus} --node-rank=$JOB_COMPLETION_INDEX "
        f"--master-addr={_NAME}-0.{_NAME} --master-port={_PORT} /program/train.py"
    )
    container = {
        "name": "train",
        "image": because("A release by its digest: all members must run the same version.", IMAGE),
        "command": because(
            "One process for each GPU. The index of the Job's pod is the rank of its machine; exec lets the program get SIGTERM.",
            ["sh", "-c", words],
        ),
        "env": pods.home(),
        "resources": pods.resources(place),
        "securityContext": pods.container_limits(),
        "volumeMounts": because("The program, and shared memory.", [{"name": "program", "mountPath": "/program", "readOnly": True}, mount]),
    }
    volumes = [because("The program.", {"name": "program", "configMap": {"name": _NAME}}), volume]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pods.metadata(_NAME, place),
        "spec": {
            "completionMode": because("Each pod has an index, and a host name that ends in it.", "Indexed"),
            "completions": because("One index for each member.", place.pods),
            "parallelism": because("All members at a time.", place.pods),
            **job_rules(),
            "template": {
                "metadata": {
                    "labels": pods.labels(_NAME),
                    "annotations": {
                        **pods.gang(_NAME, place.pods),
                        "gpuscaler.io/gang-topology": because(
                            "Members exchange gradients all the time, and traffic between zones is slow and costs money. They get machines "
                            "of one GPU model in one zone.",
                            "zone",
                        ),
                        **restart_cost("The example begins again, which loses a quarter of an hour at most.", "15m"),
                        **pods.market(place),
                    },
                },
                "spec": {
                    **job_pod(description),
                    "subdomain": because("The Service that gives the pods their names in DNS.", _NAME),
                    **pods.pod_spec(description, place, container, volumes),
                },
            },
        },
    }
