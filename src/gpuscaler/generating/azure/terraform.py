"""The Terraform files of AKS: versions, variables, the cluster, its GPU pools, gpuscaler's rights and what the chart needs of them."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.azure.access import access_blocks
from gpuscaler.generating.azure.cluster import cluster_blocks
from gpuscaler.generating.azure.names import CLIENT_ID_OUTPUT, has_groups, resource_group
from gpuscaler.generating.azure.pools import pool_blocks, quota_advice
from gpuscaler.generating.description.addresses import before_creation
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile
from gpuscaler.generating.writing.hcl import Block, Expression, Nested, hcl_file

#: 4.66 is the first version that is known to have all arguments: ``user_assigned_identity_id`` of federated credentials came last.
#: Version 5 has them, too: its upgrade guide, read 2026-11-26.
PROVIDER_VERSIONS: Final = ">= 4.66, < 6.0"
FOLDER: Final = "terraform"
_APPLY: Final = (
    f"terraform -chdir={FOLDER} init\nterraform -chdir={FOLDER} plan -out=plan.tfplan\nterraform -chdir={FOLDER} apply plan.tfplan"
)
_PROVIDERS: Final = ("Microsoft.Compute", "Microsoft.ContainerService", "Microsoft.ManagedIdentity", "Microsoft.Network")


def azure_terraform_files(description: Description) -> Iterable[GeneratedFile]:
    if description.cloud != "azure":
        return
    create = description.cluster.create
    yield hcl_file(f"{FOLDER}/versions.tf", "the versions of Terraform and of its provider for Azure", _versions())
    yield hcl_file(
        f"{FOLDER}/variables.tf",
        "the subscription",
        [_subscription(description)],
        edit=""
        if description.cluster.subscription
        else 'name the subscription: `export TF_VAR_subscription_id="$(az account show --query id --output tsv)"`',
    )
    yield hcl_file(
        f"{FOLDER}/cluster.tf",
        "the cluster, with pools without GPUs for AKS and for gpuscaler" if create else "the cluster, which exists",
        cluster_blocks(description),
        edit=before_creation(description.cluster.api_access) if create else _switch_on(description),
    )
    yield hcl_file(
        f"{FOLDER}/gpu-pools.tf",
        "an agent pool for each GPU type, market and zone, without machines",
        pool_blocks(description),
        edit=quota_advice(description),
    )
    yield hcl_file(
        f"{FOLDER}/gpuscaler.tf", "gpuscaler's identity, its rights, and the ServiceAccount that may use them", access_blocks(description)
    )
    yield hcl_file(
        f"{FOLDER}/outputs.tf",
        f"what other files need; `{CLIENT_ID_OUTPUT}` belongs in the values of the chart",
        _outputs(),
        apply=f"{_APPLY}\n{_credentials(description)}",
    )


def _credentials(description: Description) -> str:
    """Return the command that makes kubectl and helm speak to this cluster."""
    # Where people log in with Entra, only the local administrator has rights in a new cluster.
    admin = " --admin" if description.cluster.create and has_groups(description) else ""
    return f"az aks get-credentials --resource-group {resource_group(description)} --name {description.cluster.name}{admin}"


def _switch_on(description: Description) -> str:
    place = f"--resource-group {resource_group(description)} --name {description.cluster.name}"
    return (
        f"switch workload identity on, which keeps what runs: `az aks update {place} --enable-oidc-issuer --enable-workload-identity`, "
        "and see that gpuscaler finds room on a pool without GPUs"
    )


def _versions() -> Iterator[Tree]:
    yield Block(
        "terraform",
        (),
        {
            "required_version": because("The arguments below need no newer one.", ">= 1.5"),
            "required_providers": because(
                "From the first version that has all arguments that are used, to the last major version that is known.",
                Nested({"azurerm": {"source": "hashicorp/azurerm", "version": PROVIDER_VERSIONS}}),
            ),
        },
    )
    yield Block(
        "provider",
        ("azurerm",),
        {
            "subscription_id": because("The provider has no default for it.", Expression("var.subscription_id")),
            "resource_provider_registrations": because(
                "The provider's version 4 would register about sixty services in the subscription, for which many people have no right.",
                "none",
            ),
            "resource_providers_to_register": because("The services that these files use.", list(_PROVIDERS)),
            "features": because("The provider requires this block, also when it is empty.", Nested({})),
        },
    )


def _subscription(description: Description) -> Tree:
    given = description.cluster.subscription.lower()
    default = {"default": because("From the description.", given)} if given else {}
    return because(
        "Credentials are none of the variables: Terraform uses those of `az login`.",
        Block(
            "variable",
            ("subscription_id",),
            {"description": "The id of the subscription of the cluster and its machines.", "type": Expression("string"), **default},
        ),
    )


def _outputs() -> Iterator[Tree]:
    text = "The value of the annotation azure.workload.identity/client-id of the controller's ServiceAccount."
    value = Expression("azurerm_user_assigned_identity.gpuscaler.client_id")
    yield because(
        "AKS gives pods the identity by that annotation. The id is no secret.",
        Block("output", (CLIENT_ID_OUTPUT,), {"description": text, "value": value}),
    )
