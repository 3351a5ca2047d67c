"""The table of Terraform's provider for Azure: the schema of 4.55.0, and what later versions changed of it.

4.55.0 is the last version whose bindings are on PyPI. Later changes, from the provider's public pages, read 2026-11-26, as far as the
generated files touch them: ``node_provisioning_profile`` (4.57.0, pull request 30517; required in 5.0) and ``user_assigned_identity_id``
of federated credentials (4.66.0, pull request 31921), instead of ``parent_id`` and ``resource_group_name``, which 5.0 does not have (its
upgrade guide, and the page of 5.12.0). The bindings lack the provider's block ``features``.
"""

from copy import deepcopy
from typing import Any

from tests.generating.terraform.stand_in import Table, load


def table() -> Table:
    """The provider as both its versions 4.66 and 5 know it."""
    changed: dict[str, Any] = deepcopy(dict(load("azurerm")))
    types = changed["types"]
    types["azurerm"]["blocks"] = {"features": {"required": True, "many": False}}
    modes = {"mode": {"required": False, "type": "string"}, "default_node_pools": {"required": False, "type": "string"}}
    profile = {"required": True, "many": False, "arguments": modes}
    types["azurerm_kubernetes_cluster"]["blocks"]["node_provisioning_profile"] = profile
    credential = types["azurerm_federated_identity_credential"]["arguments"]
    del credential["parent_id"], credential["resource_group_name"]
    credential["user_assigned_identity_id"] = {"required": True, "type": "string"}
    return changed
