"""Priorities of workloads, and the class of volumes that examples use."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import TERRAFORM
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, objects_file

#: Priorities: of training, below that of pods without a class (0) and above the default ``priority_cutoff`` (-10); and of model servers.
TRAINING, INFERENCE = "gpu-training", "gpu-inference"
_TRAINING_PRIORITY, _INFERENCE_PRIORITY = -5, 1000
#: The class of volumes on AWS. EKS creates none that is the default, and its old class gp2 has no encryption.
EBS: Final = "gp3-encrypted"
#: A class that every AKS cluster has.
AZURE_DISK: Final = "managed-csi"


_KEY: Final = (
    f"volumes of {EBS} have the account's default key for EBS, also where the nodes' disks have one of your own (kms_key_arn). To give "
    "them yours, add `kmsKeyId: ARN` to its parameters, and let the role of the EBS CSI driver use that key"
)


def class_files(description: Description) -> Iterable[GeneratedFile]:
    yield objects_file(
        "kubernetes/classes.yaml",
        "priorities of training and of model servers"
        + (", and the class of their volumes; it needs the EBS CSI driver" if description.cloud == "aws" else ""),
        _classes(description),
        edit=_KEY if description.cloud == "aws" and description.tool == TERRAFORM else "",
    )


def storage_class(description: Description) -> str:
    """Return the name of the class for volumes of one machine at a time."""
    return EBS if description.cloud == "aws" else AZURE_DISK


def _classes(description: Description) -> Iterator[Tree]:
    yield because(
        "Training can wait and can be repeated, so it gives way to everything else when GPUs are short.",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": TRAINING},
            "description": "Training that saves its work and can be interrupted",
            "value": because(
                "Below 0, the priority of pods without a class, and above -10: gpuscaler takes pods below its priority_cutoff of -10 for "
                "expendable, and buys no machine for them.",
                _TRAINING_PRIORITY,
            ),
            "preemptionPolicy": because("Training waits for a free machine instead of evicting pods of a still lower priority.", "Never"),
            "globalDefault": because("Pods get this priority only if they ask for it.", False),
        },
    )
    yield because(
        "People wait for the answers of model servers, so these come first.",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": INFERENCE},
            "description": "Model servers that people wait for",
            "value": because("Above pods without a class (0) and far below the classes of the system (2000000000).", _INFERENCE_PRIORITY),
            "preemptionPolicy": because(
                "The scheduler places model servers first, and gpuscaler buys machines for them first. They end no pods: anyone may use "
                "the class, and with PreemptLowerPriority could end the training of others. The field cannot be changed later.",
                "Never",
            ),
            "globalDefault": because("Pods get this priority only if they ask for it.", False),
        },
    )
    if description.cloud == "aws":
        yield _ebs()


def _ebs() -> Tree:
    return because(
        "New EKS clusters have no default class of volumes, so claims name this one; a claim of a class that does not exist waits for "
        "ever.",
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": EBS},
            "provisioner": because("The EBS CSI driver: kOps installs it, on EKS it is the add-on aws-ebs-csi-driver.", "ebs.csi.aws.com"),
            "parameters": {
                "type": because("gp3 costs a fifth less than gp2, and its speed does not depend on its size.", "gp3"),
                "encrypted": because("With the account's default key for EBS. The parameter is text, so it is quoted.", "true"),
            },
            "volumeBindingMode": because(
                "The volume is made in the zone of the machine that gpuscaler buys. Made earlier, it could lie in a zone without GPUs, and "
                "the pod could never start.",
                "WaitForFirstConsumer",
            ),
            "allowVolumeExpansion": because("A checkpoint volume that is too small can then grow in place.", True),
            "reclaimPolicy": because("A volume is deleted with its claim; nothing goes on costing money unseen.", "Delete"),
        },
    )
