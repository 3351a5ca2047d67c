"""Azure subscriptions that the doctor looks at: the simulated account, over HTTP, with the cluster's objects beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from tests.clouds.azure.command_line import az
from tests.clouds.azure.providers import SIZE, AzureHarness, azure_account
from tests.doctor.applying import apply_command

from gpuscaler.cli.doctor.azure import inspected
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.api.rights import custom_roles, federated_credential
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.embedded.azure import SUBSCRIPTION, Endpoint, making
from gpuscaler.embedded.azure.compute.governing import put_document
from gpuscaler.embedded.azure.state import ScaleSet
from gpuscaler.embedded.azure.wire.requests import Answer, Reply, Request, encode
from gpuscaler.model.overrides import PoolOverride
from gpuscaler.settings.clouds.azure import AzureCluster, AzureSettings, AzureSubscription

WHOLE = f"/subscriptions/{SUBSCRIPTION}"
NODES, WORKERS = f"{WHOLE}/resourceGroups/MC_rg_aks_eastus", f"{WHOLE}/resourceGroups/workers"
CLIENT_ID = "12345678-1234-4234-8234-123456789abc"
OWN_CLIENT_ID, PRINCIPAL = "87654321-1234-4234-8234-123456789abc", "87654321-0000-4234-8234-123456789abc"
OWN_IDENTITY = f"{WHOLE}/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/gpuscaler"
ISSUER = "https://eastus.oic.prod-aks.azure.com/tenant/cluster/"
OWN = {"gpuscaler.io_cluster": "aks"}
#: What a scale set of our own needs, so that nothing is wrong with it.
RIGHT = {"upgradePolicy": {"mode": "Manual"}}

__all__ = ["SIZE", "SUBSCRIPTION", "Ward", "azure_ward"]


def own_account() -> dict[str, Any]:
    """The ServiceAccount of gpuscaler, as its chart makes it."""
    metadata = {"name": "gpuscaler", "namespace": "gpuscaler", "labels": {"app.kubernetes.io/name": "gpuscaler"}}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata, "annotations": {"azure.workload.identity/client-id": OWN_CLIENT_ID}},
    }


class Ward:
    """An account with an AKS cluster, and what the doctor says about it; ``objects`` are those of the cluster.

    gpuscaler has the roles that `gpuscaler generate azure-role` prints.
    """

    def __init__(self, harness: AzureHarness) -> None:
        self.harness, self.account, self.cluster = harness, harness.account, harness.cluster
        self.objects: list[dict[str, Any]] = [own_account()]
        self.subscription = SUBSCRIPTION
        self.cluster_name, self.cluster_group, self.groups = "aks", "rg", ("workers",)
        self.pools: tuple[str, ...] = ()
        self.exclude: tuple[str, ...] = ()
        self.overrides: tuple[PoolOverride, ...] = ()
        self.api = "auto"
        #: The namespaces that the run file names.
        self.named = frozenset({"gpuscaler", "ml"})
        self._assign_roles()

    def _assign_roles(self) -> None:
        self.put(OWN_IDENTITY, properties={"clientId": OWN_CLIENT_ID, "principalId": PRINCIPAL})
        credential = federated_credential(ISSUER, "gpuscaler", "gpuscaler")
        self.put(f"{OWN_IDENTITY}/federatedIdentityCredentials/{credential.pop('name')}", properties=credential)
        node_group = self.cluster.node_group
        roles = custom_roles(SUBSCRIPTION, cluster="aks", cluster_group="rg", node_groups=(node_group, "workers"))
        idents = {}
        for number, role in enumerate(roles["roles"]):
            idents[role["Name"]] = f"{WHOLE}/providers/Microsoft.Authorization/roleDefinitions/{number}"
            permission = {"actions": role["Actions"], "notActions": role["NotActions"]}
            described = {"roleName": role["Name"], "type": "CustomRole", "description": role["Description"], "permissions": [permission]}
            self.put(idents[role["Name"]], properties={**described, "assignableScopes": role["AssignableScopes"]})
        for number, assignment in enumerate(roles["assignments"]):
            given = {"principalId": PRINCIPAL, "roleDefinitionId": idents[assignment["role"]], "scope": assignment["scope"]}
            self.put(f"{assignment['scope']}/providers/Microsoft.Authorization/roleAssignments/{number}", properties=given)

    def forbid(self, *actions: str) -> None:
        """Leave ``actions`` out of gpuscaler's roles."""
        for number in range(2):
            ident = f"{WHOLE}/providers/Microsoft.Authorization/roleDefinitions/{number}"
            properties = self.account.documents[ident.lower()]["properties"]
            (permission,) = properties["permissions"]
            kept = [action for action in permission["actions"] if action not in actions]
            self.put(ident, properties={**properties, "permissions": [{**permission, "actions": kept}]})

    def settings(self) -> AzureSettings:
        cluster = AzureCluster(self.cluster_name, self.cluster_group)
        subscription = AzureSubscription(
            id=self.subscription, cluster=cluster, resource_groups=self.groups, pools=self.pools, exclude=self.exclude
        )
        return AzureSettings(subscriptions=(subscription,), api=self.api, overrides=self.overrides)

    async def look(self) -> Report:
        http = Http({})
        harness = self.harness
        arm = Arm(
            FixedToken("token"),
            fence=harness.fence,
            now=harness.now,
            sleep=harness.pass_time,
            endpoint_url=harness.url,
            http=http,
            random=Random(0),
        )
        try:
            evidence = replace(evidence_of_objects(self.objects, now=harness.now()), named=self.named)
            evidence = await inspected(evidence, self.settings(), arm)
        finally:
            await arm.close()
        return run_checks(evidence, CHECKS)

    async def found(self) -> set[tuple[str, str]]:
        return {(finding.check, finding.object) for finding in (await self.look()).findings}

    def apply(self, command: str) -> None:
        """Run a command that a finding prints."""
        if command.startswith("kubectl "):
            self.objects = apply_command(self.objects, command)
        else:
            az(command, self.account, Endpoint(self.account))
            self.harness.later(120.0)

    def pool(self, name: str, size: Any = SIZE, **settings: Any) -> None:
        making.create_pool(self.account, self.cluster, name, size, **settings)

    def own(self, name: str = "gpus", size: str = SIZE, *, tags: dict[str, str] | None = None, **settings: Any) -> ScaleSet:
        """A scale set that AKS does not manage."""
        properties = {**RIGHT, **settings.pop("properties", {})}
        return making.create_scale_set(
            self.account, "workers", name, size, tags=OWN if tags is None else tags, properties=properties, **settings
        )

    def answer(self, path: str, content: Any) -> None:
        """Answer calls of ``path``, a pattern in lower case, with ``content``."""
        handle = self.harness.endpoint.handle

        def instead(request: Request) -> Answer:
            if fnmatchcase(request.path.lower(), path):
                return encode(Reply(content), {})
            return handle(request)

        self.harness.endpoint.handle = instead  # type: ignore[method-assign]

    def put(self, ident: str, **fields: Any) -> None:
        put_document(self.account, ident, **fields)

    def remove_pools(self, *names: str) -> None:
        for name in names:
            pool = self.cluster.pools.pop(name)
            group = self.account.group(SUBSCRIPTION, self.cluster.node_group)
            del group.scale_sets[pool.scale_set.lower()]

    def add_node(self, scale_set: ScaleSet, number: int = 0) -> None:
        """A node of the cluster on a machine of ``scale_set``."""
        name, room = f"{scale_set.name}00000{number}", {"cpu": "4", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "1"}
        self.objects.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"node.kubernetes.io/instance-type": SIZE, "kubernetes.azure.com/accelerator": "nvidia"},
                },
                "spec": {"providerID": f"azure://{scale_set.id}/virtualMachines/{number}"},
                "status": {"capacity": room, "allocatable": room},
            }
        )


@asynccontextmanager
async def azure_ward(**conditions: Any) -> AsyncIterator[Ward]:
    async with azure_account(**conditions) as harness:
        yield Ward(harness)
