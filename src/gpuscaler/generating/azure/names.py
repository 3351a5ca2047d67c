"""Names that several files of Azure share, so that what one file creates is what another one names."""

from typing import Final

from gpuscaler.generating.description.resolved import Description

#: The output of Terraform with the client id of gpuscaler's identity, for the annotation of the ServiceAccount in the chart's values.
CLIENT_ID_OUTPUT: Final = "client_id"
#: The agent pool that AKS's own pods run on, and what the names of those of other machines without GPUs begin with. Names of GPU pools
#: never equal them: those end with a market, and perhaps a zone.
SYSTEM_POOL: Final = "system"
GENERAL_POOL: Final = "general"


def resource_group(description: Description) -> str:
    return description.cluster.resource_group or f"{description.cluster.name}-rg"


def identity_name(description: Description) -> str:
    """Return the name of gpuscaler's managed identity."""
    return f"gpuscaler-{description.cluster.name}"


def zones(description: Description) -> list[str]:
    """Return the zones of machines without GPUs: those of the cluster, or else those of all GPU groups; none where there are none."""
    return sorted(set(description.cluster.zones) or {group.zone for group in description.groups if group.zone})


def has_groups(description: Description) -> bool:
    """Whether a team has a group of users, so that people log in with Microsoft Entra ID."""
    return any(team.group for team in description.teams)
