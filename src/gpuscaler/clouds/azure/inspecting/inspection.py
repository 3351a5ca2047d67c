"""Answers of Azure as plain data by kind, and the reasons why others are missing."""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from gpuscaler.clouds.azure.api.arm import ArmError, GoneError
from gpuscaler.clouds.azure.api.errors import clean
from gpuscaler.clouds.azure.api.rights import right_of
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.inspected import Inspected
from gpuscaler.clouds.protocol import CloudError

T = TypeVar("T")

CLUSTER, AGENT_POOL, SCALE_SET, MACHINE = "azure/ManagedCluster", "azure/AgentPool", "azure/ScaleSet", "azure/VirtualMachine"
SKU, USAGE, LOCK, AUTOSCALE = "azure/Sku", "azure/Usage", "azure/Lock", "azure/AutoscaleSetting"
POLICY, DEFINITION, IDENTITY, RIGHT = "azure/PolicyAssignment", "azure/PolicyDefinition", "azure/Identity", "azure/Right"
SETTINGS, MISSING, DENIED = "azure/Settings", "azure/Missing", "azure/DeniedAction"
#: The action that reads each kind, for denials that do not name it.
_ACTIONS: Final = {
    CLUSTER: "Microsoft.ContainerService/managedClusters/read",
    AGENT_POOL: "Microsoft.ContainerService/managedClusters/agentPools/read",
    SCALE_SET: "Microsoft.Compute/virtualMachineScaleSets/read",
    MACHINE: "Microsoft.Compute/virtualMachines/read",
    SKU: "Microsoft.Compute/skus/read",
    USAGE: "Microsoft.Compute/locations/usages/read",
    LOCK: "Microsoft.Authorization/locks/read",
    AUTOSCALE: "Microsoft.Insights/autoscalesettings/read",
    POLICY: "Microsoft.Authorization/policyAssignments/read",
    DEFINITION: "Microsoft.Authorization/policyDefinitions/read",
    IDENTITY: "Microsoft.ManagedIdentity/userAssignedIdentities/read",
    RIGHT: "Microsoft.Authorization/roleAssignments/read",
}


class Inspection(Inspected):
    """What was read of subscriptions. A resource that the settings name and Azure does not know is an ``azure/Missing``."""

    async def ask(self, kind: str, scope: str, call: Awaitable[T], *, named: Mapping[str, str] | None = None) -> T | None:
        """The answer of ``call`` at ``scope``; None, with the reason in ``unread``, if there is none.

        ``named`` describes what of the settings the call is about.
        """
        try:
            return await call
        except GoneError as error:
            if named is None:
                self.note(kind, error.detail)
            else:
                self.add(MISSING, [{**named, "Code": error.failure.code, "Detail": error.detail}])
        except ArmError as error:
            if error.failure.status == 403:
                self._deny(error.failure.action or _ACTIONS.get(kind, ""), scope, kind)
            else:
                self.note(kind, error.detail)
        except CloudError as error:
            self.note(kind, error.detail)
        except ReadingError as error:
            self.note(kind, f"{clean(scope, 200)}: {error}")
        return None

    def _deny(self, action: str, scope: str, kind: str) -> None:
        right = right_of(action)
        name = right.action if right is not None else clean(action, 100) or "this call"
        self.note(kind, f"there is no permission for {name} at {clean(scope, 200)}; allow it")
        if right is not None:
            self.add(DENIED, [{"Action": name, "Purpose": right.purpose, "Scope": scope}])


def entries_of(documents: Any) -> list[Mapping[str, Any]]:
    """The items of a list that are objects."""
    return [document for document in documents if isinstance(document, Mapping)] if isinstance(documents, list) else []
