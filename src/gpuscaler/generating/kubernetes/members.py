"""How people become members of the groups that RoleBindings name. Kubernetes knows no list of members: each login brings its groups.

Sources, 2026-11-26: the EKS user guide, "Create an access entry using Kubernetes groups with the AWS CLI"; AKS's page "Enable
Microsoft Entra ID authentication"; Kubernetes' page "Authenticating"; kOps' page "Authentication" (``kubeAPIServer.oidcGroupsClaim``).
"""

from gpuscaler.generating.azure.names import resource_group
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import KOPS


def how_members_join(description: Description) -> str:
    """Return what makes people members of the teams' groups, as the end of a sentence; empty if no team has one."""
    groups = [team.group for team in description.teams if team.group]
    if not groups:
        return ""
    name, listed = description.cluster.name, ", ".join(groups)
    if description.cloud == "azure":
        if description.cluster.create:
            return (
                f"members of {listed} need the role Azure Kubernetes Service Cluster User on the cluster, and kubelogin. Do not "
                "give them the role Azure Kubernetes Service Cluster Admin: it hands out a local account that no RoleBinding restricts"
            )
        place = f"--resource-group {resource_group(description)} --name {name}"
        return (
            f"see that the cluster logs people in with Microsoft Entra ID, or the groups {listed} have no members: `az aks show {place} "
            f"--query aadProfile` prints its settings, and `az aks update {place} --enable-aad` switches it on, for good"
        )
    if description.tool == KOPS:
        return (
            f"let the API server know the members of {listed}: by groups of your provider of identities (kOps: spec.kubeAPIServer."
            "oidcGroupsClaim), or by client certificates with the organization (O) of that name"
        )
    entry = f"aws eks create-access-entry --region {description.cluster.region} --cluster-name {name}"
    return (
        f"give each team's IAM role its group, since EKS puts no one into {listed}: `{entry} --principal-arn ARN_OF_THE_ROLE "
        "--kubernetes-groups GROUP`"
    )
