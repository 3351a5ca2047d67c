"""A cluster with existing nodes, in virtual time: API server, scheduler, kubelets and workload controllers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.embedded.asking import virtual_clock
from tests.objects import node
from tests.running_cluster import RunningCluster

from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.kube.resources import NODES, PODS, Resource
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Delay, Delays

LABELS = {"app": "web"}


class Lab(RunningCluster):
    """A user's actions and queries on the cluster."""

    def __init__(self) -> None:
        conditions = Conditions(delays=Delays(image_pull=Delay(0, 0, 0)))
        super().__init__(EmbeddedCluster(Policy(pools=()), now=virtual_clock, conditions=conditions))

    async def wait(self, seconds: float = 5.0) -> None:
        await self.sleep(seconds)

    async def node(self, name: str, *, cpu: int = 8, labels: Mapping[str, str] | None = None, taint: str = "") -> None:
        taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
        await self.user.create(NODES, node(name, labels=labels, cpu=str(cpu), taints=taints))

    async def create(
        self, resource: Resource, name: str, *, run_for: str = "", template: Mapping[str, Any] | None = None, **spec: Any
    ) -> None:
        """Create a workload whose pods request one CPU each."""
        container = {"name": "c", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}
        inner: dict[str, Any] = {"containers": [container], **(template or {})}
        if resource.plural == "jobs":
            inner.setdefault("restartPolicy", "Never")
        else:
            spec.setdefault("selector", {"matchLabels": LABELS})
        annotations = {"gpuscaler.io/run-for": run_for} if run_for else {}
        whole = {"template": {"metadata": {"labels": LABELS, "annotations": annotations}, "spec": inner}, **spec}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": whole}
        await self.user.create(resource, body, namespace="default")

    async def patch(self, resource: Resource, name: str, patch: Mapping[str, Any], *, part: str = "") -> None:
        await self.user.merge_patch(resource, name, patch, namespace="default", subresource=part)

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        obj: dict[str, Any] = msgspec.json.decode(await self.user.get(resource, name, namespace="default"))
        return obj

    async def status(self, resource: Resource, name: str) -> dict[str, Any]:
        value: dict[str, Any] = (await self.get(resource, name)).get("status") or {}
        return value

    async def pods(self) -> list[dict[str, Any]]:
        """Pods that have neither ended nor are being deleted."""
        listed = await self.all()
        return [pod for pod in listed if pod["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]]

    async def fail(self, pod: Mapping[str, Any], *conditions: Mapping[str, str]) -> None:
        """End the containers of a pod with an error."""
        await self.patch(PODS, pod["metadata"]["name"], {"status": {"phase": "Failed", "conditions": list(conditions)}}, part="status")


@asynccontextmanager
async def lab(*nodes: str) -> AsyncIterator[Lab]:
    """A cluster with ``nodes`` of eight CPUs."""
    made = Lab()
    try:
        await made.wait(1.0)
        for name in nodes:
            await made.node(name)
        yield made
    finally:
        await made.close()


def names(objects: list[dict[str, Any]]) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in objects)
