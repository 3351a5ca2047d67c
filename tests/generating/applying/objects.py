"""The cluster's side of generated files: their objects and workloads in the cluster of a stage, and the run file in the chart's values."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import yaml
from tests.control.account_stage import AccountStage
from tests.generating.corpus import FOLDER

from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description
from gpuscaler.kube import resources
from gpuscaler.kube.errors import Conflict, NotFound
from gpuscaler.kube.resources import PODS, Resource

RESOURCES = {(resource.api_version, resource.kind): resource for resource in vars(resources).values() if isinstance(resource, Resource)}
_WORKLOADS = {"Deployment", "Job", "StatefulSet"}


def described(name: str, **cluster: str) -> Description:
    """A description of the corpus, with these settings of its cluster."""
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    text["cluster"] |= cluster
    return read_description(yaml.safe_dump(text), name)


async def create_objects(here: AccountStage, description: Description) -> list[dict[str, Any]]:
    """Apply the files of the cluster in their order; return the workloads that request GPUs, without creating them."""
    workloads = []
    if description.tool == "kops":
        # kOps' add-on for GPUs has it, beside NVIDIA's device plugin as it is shipped.
        await here.user.create(resources.RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    for file in files_of(description):
        if not file.path.startswith(("kubernetes/", "workloads/")):
            continue
        for made in yaml.safe_load_all(file.text(explain=False)):
            resource = RESOURCES.get((made["apiVersion"], made["kind"]))
            if made["kind"] in _WORKLOADS:
                workloads.append(made)
            elif resource is not None:
                namespace = made["metadata"].get("namespace", "")
                with suppress(Conflict):
                    await here.user.create(resource, made, namespace=namespace)
                    continue
                await here.user.delete(resource, made["metadata"]["name"], namespace=namespace)
                await here.user.create(resource, made, namespace=namespace)
    return workloads


async def submit(here: AccountStage, workloads: Iterable[Mapping[str, Any]]) -> None:
    for workload in workloads:
        resource = RESOURCES[workload["apiVersion"], workload["kind"]]
        await here.user.create(resource, workload, namespace=workload["metadata"]["namespace"])


async def withdraw(here: AccountStage, workloads: Iterable[Mapping[str, Any]]) -> None:
    for workload in workloads:
        resource = RESOURCES[workload["apiVersion"], workload["kind"]]
        with suppress(NotFound):
            await here.user.delete(resource, workload["metadata"]["name"], namespace=workload["metadata"]["namespace"])


async def all_run(here: AccountStage) -> bool:
    """Whether there are pods of workloads, and every one runs."""
    pods = [pod for pod in await here.all(PODS) if pod["metadata"]["namespace"] != "kube-system"]
    return bool(pods) and all(pod["status"].get("phase") == "Running" for pod in pods)


async def gpu_nodes(here: AccountStage) -> list[dict[str, Any]]:
    return [node for node in await here.nodes() if "nvidia.com/gpu" in node["status"]["capacity"]]


async def all_objects(here: AccountStage) -> list[dict[str, Any]]:
    """The objects of the cluster, as the doctor reads them."""
    objects = []
    for (api_version, kind), resource in RESOURCES.items():
        with suppress(NotFound):
            objects += [{"apiVersion": api_version, "kind": kind, **found} for found in await here.all(resource)]
    return objects


def values_of(description: Description) -> dict[str, Any]:
    """The values of the chart."""
    (values,) = [file for file in files_of(description) if file.path == "gpuscaler/values.yaml"]
    read: dict[str, Any] = yaml.safe_load(values.text(explain=False))
    return read


def config_of(description: Description) -> dict[str, Any]:
    """The settings of the run file in the values of the chart, without servers."""
    return {**values_of(description)["config"], "http": {"enabled": False}, "pages": {"enabled": False}}


async def create_account(here: AccountStage, description: Description, **filled_in: str) -> None:
    """The ServiceAccount of the controller as the chart makes it; ``filled_in`` are values of its annotations that a person writes."""
    given = values_of(description).get("controller", {}).get("serviceAccount", {}).get("annotations", {})
    annotations = {key: filled_in.get(key.partition("/")[2].replace("-", "_"), value) for key, value in given.items()}
    labels = {"app.kubernetes.io/name": "gpuscaler"}
    metadata = {"name": "gpuscaler-controller", "labels": labels, "annotations": annotations}
    await here.user.create(resources.SERVICE_ACCOUNTS, {"metadata": metadata}, namespace=description.controller.namespace)
