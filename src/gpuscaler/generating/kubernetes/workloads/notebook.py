"""A notebook with a disk of its own."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.classes import storage_class
from gpuscaler.generating.kubernetes.workloads import pods
from gpuscaler.generating.kubernetes.workloads.placing import Place, places
from gpuscaler.generating.kubernetes.workloads.trials import trial
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, objects_file

#: Jupyter's own image with PyTorch and CUDA 12. Its user jovyan has the id 1000 and the group 100, which owns the home folder.
IMAGE: Final = "quay.io/jupyter/pytorch-notebook:cuda12-python-3.11.8"
_GROUP: Final = 100
_HOME: Final = "/home/jovyan"
_NAME: Final = "notebook"
_PORT: Final = 8888


def notebook_files(description: Description) -> Iterable[GeneratedFile]:
    place = places(description).get("notebook")
    if place is not None:
        yield objects_file(
            "workloads/notebook.yaml",
            "a notebook with a GPU and a disk of its own; "
            f"`kubectl --namespace {place.namespace} scale statefulset {_NAME} --replicas 0` ends it and keeps the disk",
            _objects(description, place),
            trial=trial(description, place, "workloads/notebook.yaml", keeps="home-notebook-0"),
        )


def _objects(description: Description, place: Place) -> Iterator[Tree]:
    yield because(
        "The address of the notebook within the namespace. Reach it with kubectl port-forward; its log prints the token.",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": pods.metadata(_NAME, place),
            "spec": {
                "clusterIP": because("A StatefulSet needs a Service without an address, which gives its pod a name.", "None"),
                "selector": pods.labels(_NAME),
                "ports": [{"name": "http", "port": because("The port of Jupyter.", _PORT)}],
            },
        },
    )
    yield because("A StatefulSet keeps the notebook's disk, whichever machine it runs on.", _stateful_set(description, place))


def _stateful_set(description: Description, place: Place) -> Tree:
    volume, mount = pods.shared_memory(place)
    minutes = 60
    container = {
        "name": "notebook",
        "image": because("A fixed version: with latest, a restart could change the libraries under running work.", IMAGE),
        "args": because(
            f"Kernels that do nothing for {minutes} minutes end and free the GPU's memory, even if a browser still shows them.",
            [
                "start-notebook.py",
                f"--MappingKernelManager.cull_idle_timeout={minutes * 60}",
                "--MappingKernelManager.cull_connected=True",
            ],
        ),
        "ports": [{"name": "http", "containerPort": because("The port of Jupyter.", _PORT)}],
        "readinessProbe": because("The notebook is ready when its server answers.", {"tcpSocket": {"port": "http"}, "periodSeconds": 10}),
        "resources": pods.resources(place),
        "securityContext": pods.container_limits(),
        "volumeMounts": because("The home folder and shared memory.", [{"name": "home", "mountPath": _HOME}, mount]),
    }
    annotations: dict[str, Tree] = {
        "gpuscaler.io/disruption": because(
            "A move loses the variables of the notebook, which saves a few cents. Remove this line, or write allow, to let gpuscaler move "
            "it.",
            "never",
        )
    }
    if "on-demand" in place.markets:
        annotations["gpuscaler.io/market"] = because(
            "A notebook has nothing that continues after an interruption, so it gets no spot machine.", "on-demand"
        )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": pods.metadata(_NAME, place),
        "spec": {
            "serviceName": because("The Service above.", _NAME),
            "replicas": because("One notebook. With 0 its machine is removed after ten idle minutes, and the disk stays.", place.pods),
            "selector": {"matchLabels": pods.labels(_NAME)},
            "template": {
                "metadata": {"labels": pods.labels(_NAME), "annotations": annotations},
                "spec": {
                    "terminationGracePeriodSeconds": because("Jupyter saves and ends within this time.", 30),
                    **pods.pod_spec(description, place, container, [volume], group=_GROUP),
                },
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": because("The home folder.", "home")},
                    "spec": pods.claim_spec(storage_class(description), "20Gi"),
                }
            ],
        },
    }
