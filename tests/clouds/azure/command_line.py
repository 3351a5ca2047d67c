"""The part of the Azure CLI that findings print: commands become calls of a simulated account, as the CLI makes them."""

import json
import shlex
from collections.abc import Iterable
from typing import Any

from gpuscaler.embedded.azure import Account, Endpoint, making
from gpuscaler.embedded.azure.wire.requests import Request

#: Options without a value.
FLAGS = {
    *("disable-cluster-autoscaler", "enable-oidc-issuer", "enable-workload-identity", "enable-managed-identity", "yes"),
}
#: Options with several values.
LISTS = {"set", "tags", "ids", "audiences", "limit-object"}


def az(command: str, account: Account, endpoint: Endpoint) -> None:
    """Run ``command``. Options that a command does not have, and calls that Azure refuses, fail."""
    words = shlex.split(command)
    assert words[0] == "az", command
    first = next(index for index, word in enumerate(words) if word.startswith("--"))
    options = parse(words[first:])
    run = Runner(account, endpoint, options.pop("subscription", account.subscriptions[0]))
    act = getattr(run, "_".join(word.replace("-", "_") for word in words[1:first]), None)
    assert act is not None, f"saw {' '.join(words[:first])}, expected a command that findings print"
    act(**{name.replace("-", "_"): value for name, value in options.items()})


def parse(words: Iterable[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            assert name not in options, f"saw --{name} twice"
            options[name] = True if name in FLAGS else []
        else:
            options[name].append(word)
    return {name: value if name in FLAGS or name in LISTS else value[0] for name, value in options.items() if value != []}


class Runner:
    def __init__(self, account: Account, endpoint: Endpoint, subscription: str) -> None:
        self.account, self.endpoint, self.subscription = account, endpoint, subscription

    def call(self, method: str, path: str, body: Any = None, *, version: str = "2024-05-01") -> Any:
        request = Request(method, path, body=b"" if body is None else json.dumps(body).encode(), query=f"api-version={version}")
        answer = self.endpoint.handle(request)
        assert 200 <= answer.status < 300, answer.body.decode()
        return json.loads(answer.body or b"null")

    def path(self, group: str, kind: str, name: str) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{kind}/{name}"

    def cluster(self, group: str, name: str) -> str:
        return self.path(group, "Microsoft.ContainerService/managedClusters", name)

    def aks_nodepool_update(
        self,
        *,
        resource_group: str,
        cluster_name: str,
        name: str,
        disable_cluster_autoscaler: bool = False,
        scale_down_mode: str = "",
        mode: str = "",
    ) -> None:
        path = f"{self.cluster(resource_group, cluster_name)}/agentPools/{name}"
        properties = self.call("GET", path)["properties"]
        if disable_cluster_autoscaler:
            assert properties["enableAutoScaling"], "the CLI refuses to disable what is not enabled"
            properties |= {"enableAutoScaling": False, "minCount": None, "maxCount": None}
        changes = {"scaleDownMode": scale_down_mode, "mode": mode}
        self.call("PUT", path, {"properties": {**properties, **{key: value for key, value in changes.items() if value}}})

    def aks_update(
        self,
        *,
        resource_group: str,
        name: str,
        node_provisioning_mode: str = "",
        enable_oidc_issuer: bool = False,
        enable_workload_identity: bool = False,
        enable_managed_identity: bool = False,
        yes: bool = False,
    ) -> None:
        changes: dict[str, Any] = {}
        if node_provisioning_mode:
            changes["nodeProvisioningProfile"] = {"mode": node_provisioning_mode}
        if enable_oidc_issuer:
            changes["oidcIssuerProfile"] = {"enabled": True, "issuerURL": "https://eastus.oic.prod-aks.azure.com/tenant/cluster/"}
        if enable_workload_identity:
            changes["securityProfile"] = {"workloadIdentity": {"enabled": True}}
        if enable_managed_identity:
            assert yes, "the CLI would ask"
            changes["servicePrincipalProfile"] = {"clientId": "msi"}
        self.call("PUT", self.cluster(resource_group, name), {"properties": changes})

    def vmss_update(
        self,
        *,
        resource_group: str,
        name: str,
        set: list[str] | None = None,  # noqa: A002 - the option's name
        regular_priority_count: str = "",
        regular_priority_percentage: str = "",
    ) -> None:
        properties: dict[str, Any] = {}
        for assignment in set or ():
            path, _, text = assignment.partition("=")
            *parents, last = path.split(".")
            place = properties
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = {"true": True, "false": False}.get(text, text)
        if regular_priority_count:
            properties.setdefault("priorityMixPolicy", {})["baseRegularPriorityCount"] = int(regular_priority_count)
        if regular_priority_percentage:
            properties.setdefault("priorityMixPolicy", {})["regularPriorityPercentageAboveBase"] = int(regular_priority_percentage)
        self.call("PATCH", self.path(resource_group, "Microsoft.Compute/virtualMachineScaleSets", name), {"properties": properties})

    def tag_update(self, *, resource_id: str, operation: str, tags: list[str]) -> None:
        assert operation == "Merge"
        before = self.call("GET", resource_id).get("tags") or {}
        self.call("PATCH", resource_id, {"tags": {**before, **dict(tag.split("=", 1) for tag in tags)}})

    def lock_delete(self, *, ids: list[str]) -> None:
        for ident in ids:
            self.call("DELETE", ident)

    def monitor_autoscale_update(self, *, resource_group: str, name: str, enabled: str) -> None:
        path = self.path(resource_group, "Microsoft.Insights/autoscalesettings", name)
        self.call("PATCH", path, {"properties": {"enabled": {"true": True, "false": False}[enabled]}})

    def quota_update(self, *, resource_name: str, scope: str, limit_object: list[str], resource_type: str) -> None:
        assert resource_type in ("dedicated", "lowPriority")
        (value,) = [int(item.removeprefix("value=")) for item in limit_object if item.startswith("value=")]
        _, _, subscription, _, provider, _, location = scope.split("/")
        assert provider == "Microsoft.Compute"
        making.set_quota(self.account, resource_name, value, location=location, subscription=subscription)

    def role_definition_update(self, *, role_definition: str) -> None:
        role = json.loads(role_definition)
        path = f"/subscriptions/{self.subscription}/providers/Microsoft.Authorization/roleDefinitions"
        (found,) = [item for item in self.call("GET", path)["value"] if item["properties"]["roleName"] == role["Name"]]
        properties = {
            "roleName": role["Name"],
            "type": "CustomRole" if role["IsCustom"] else "BuiltInRole",
            "description": role["Description"],
            "permissions": [{"actions": role["Actions"], "notActions": role["NotActions"]}],
            "assignableScopes": role["AssignableScopes"],
        }
        self.call("PUT", found["id"], {"properties": properties})

    def identity_federated_credential_create(
        self, *, name: str, identity_name: str, resource_group: str, issuer: str, subject: str, audiences: list[str]
    ) -> None:
        self._credential(resource_group, identity_name, name, {"issuer": issuer, "subject": subject, "audiences": audiences})

    def identity_federated_credential_update(
        self, *, name: str, identity_name: str, resource_group: str, issuer: str = "", audiences: list[str] | None = None
    ) -> None:
        changes = {key: value for key, value in {"issuer": issuer, "audiences": audiences}.items() if value}
        before = self.call("GET", self._credential_path(resource_group, identity_name, name))["properties"]
        self._credential(resource_group, identity_name, name, {**before, **changes})

    def _credential(self, group: str, identity: str, name: str, properties: dict[str, Any]) -> None:
        self.call("PUT", self._credential_path(group, identity, name), {"properties": properties})

    def _credential_path(self, group: str, identity: str, name: str) -> str:
        return f"{self.path(group, 'Microsoft.ManagedIdentity/userAssignedIdentities', identity)}/federatedIdentityCredentials/{name}"
