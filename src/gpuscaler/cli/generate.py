"""``gpuscaler generate``: writes the files that set up a cluster, permissions, and traces for the simulator."""

import io
import json
import re
import sys
from collections.abc import Iterable

import click

from gpuscaler.cli.generate_cluster import cluster, description

PROFILES = ("openb", "philly")
#: Cluster names that EKS and kops allow. Other characters, above all a star, have a special meaning in a policy.
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Names and ids that Azure allows. Wildcards would widen the scope of a role.
_AKS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_RESOURCE_GROUP = re.compile(r"[A-Za-z0-9_().-]{0,89}[A-Za-z0-9_()-]")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_SUBNET = re.compile(
    r"/subscriptions/[0-9A-Fa-f-]{36}/resourceGroups/[A-Za-z0-9_().-]{1,90}/providers/Microsoft\.Network"
    r"/virtualNetworks/[A-Za-z0-9_.-]{1,80}/subnets/[A-Za-z0-9_.-]{1,80}",
    re.IGNORECASE,
)
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ISSUER = re.compile(r"https://[^\s?#@]{1,500}")
_ARN = re.compile(r"arn:(aws|aws-cn|aws-us-gov):(sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9._-]+|iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+)")


@click.group()
def generate() -> None:
    """Write the files that set up a cluster, the permissions that gpuscaler needs, or a trace of jobs."""


generate.add_command(cluster)
generate.add_command(description)


@generate.command()
@click.option("--profile", type=click.Choice(PROFILES), default=PROFILES[0], show_default=True, help="The trace whose marginals are used.")
@click.option("--jobs", default=1500, show_default=True, type=click.IntRange(1, 1_000_000), help="Number of jobs.")
@click.option("--days", default=1, show_default=True, type=click.IntRange(1, 3650), help="Number of days over which they are submitted.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of all random values.")
def trace(*, profile: str, jobs: int, days: int, seed: int) -> None:
    """Write a trace of jobs as CSV to standard output, for `gpuscaler simulate --trace`.

    Profiles: openb is Alibaba's cluster of 2023, in which pods share GPUs; philly is Microsoft's training cluster of 2017, with gangs and
    long jobs.
    """
    from gpuscaler.simulation.traces.formats.tidy import write_trace
    from gpuscaler.simulation.traces.generator import generate as draw
    from gpuscaler.simulation.traces.marginals import PROFILES as MARGINALS

    text = io.StringIO()
    write_trace(draw(seed=seed, jobs=jobs, profile=MARGINALS[profile], days=days), text, note=f"generated like {profile}, seed {seed}")
    sys.stdout.write(text.getvalue())
    click.echo(f"{jobs:,} jobs; {MARGINALS[profile].source}", err=True)


@generate.command()
@click.option("--cluster", required=True, metavar="NAME", help="The cluster's name, as in the tags of its groups.")
@click.option("--queue", default="", metavar="ARN", help="The SQS queue of interruption notices.")
@click.option("--node-role", default="", metavar="ARN", help="The role of the nodes, if their launch templates set one.")
@click.option("--read-only", is_flag=True, help="Only the permissions for `gpuscaler pools`, `gpuscaler doctor` and a dry run.")
@click.option(
    "--partition", type=click.Choice(["aws", "aws-cn", "aws-us-gov"]), default="aws", show_default=True, help="The AWS partition."
)
def iam(*, cluster: str, queue: str, node_role: str, read_only: bool, partition: str) -> None:
    """Write the IAM policy that gpuscaler needs for one cluster to standard output."""
    from gpuscaler.clouds.aws.discovery.iam import policy

    if not _CLUSTER.fullmatch(cluster):
        raise click.BadParameter(f"saw {cluster!r}, expected letters, digits, '-', '_' and '.'", param_hint="--cluster")
    for option, text, kind in (("--queue", queue, "sqs"), ("--node-role", node_role, "iam")):
        if text and (not _ARN.fullmatch(text) or text.split(":")[2] != kind):
            example = "arn:aws:sqs:us-east-1:123456789012:notices" if kind == "sqs" else "arn:aws:iam::123456789012:role/nodes"
            raise click.BadParameter(f"saw {text!r}, expected an ARN such as {example}", param_hint=option)
    document = policy(cluster, queue=queue, node_role=node_role, change=not read_only, partition=partition)
    click.echo(json.dumps(document, indent=2))


@generate.command("azure-role")
@click.option("--subscription", required=True, metavar="ID", help="The subscription with the cluster's machines.")
@click.option("--cluster", default="", metavar="NAME", help="The AKS cluster.")
@click.option("--resource-group", default="", metavar="NAME", help="The resource group that the cluster itself is in.")
@click.option(
    "--node-resource-group",
    "node_groups",
    multiple=True,
    metavar="NAME",
    help="A resource group with scale sets, such as the cluster's node resource group (MC_...); repeatable.",
)
@click.option("--subnet", "subnets", multiple=True, metavar="ID", help="A subnet of yours that agent pools are in; repeatable.")
@click.option("--read-only", is_flag=True, help="Only the permissions for `gpuscaler pools` and a dry run.")
@click.option("--issuer", default="", metavar="URL", help="The cluster's OIDC issuer; adds the federated credential.")
@click.option("--namespace", default="gpuscaler", show_default=True, metavar="NAME", help="The controller's namespace.")
@click.option(
    "--service-account", default="gpuscaler-controller", show_default=True, metavar="NAME", help="The controller's ServiceAccount."
)
def azure_role(
    *,
    subscription: str,
    cluster: str,
    resource_group: str,
    node_groups: tuple[str, ...],
    subnets: tuple[str, ...],
    read_only: bool,
    issuer: str,
    namespace: str,
    service_account: str,
) -> None:
    """Write the custom roles that gpuscaler needs on Azure for one cluster to standard output, as JSON.

    With them come the scopes to assign them at, and, with --issuer, the federated credential of the controller's ServiceAccount.
    """
    from gpuscaler.clouds.azure.api.rights import custom_roles, federated_credential

    group = "the name of a resource group, such as MC_prod-rg_prod_eastus"
    _check("--subscription", _UUID, (subscription,), "the id of a subscription, such as 00000000-0000-0000-0000-000000000000")
    _check("--cluster", _AKS, filter(None, (cluster,)), "letters, digits, '-' and '_'")
    _check("--resource-group", _RESOURCE_GROUP, filter(None, (resource_group,)), group)
    _check("--node-resource-group", _RESOURCE_GROUP, node_groups, group)
    _check("--subnet", _SUBNET, subnets, "the id of a subnet, such as /subscriptions/.../virtualNetworks/NAME/subnets/NAME")
    issuers = "a URL such as https://..., which `az aks show --query oidcIssuerProfile.issuerUrl` prints"
    _check("--issuer", _ISSUER, filter(None, (issuer,)), issuers)
    _check("--namespace", _DNS_LABEL, (namespace,), "the name of a namespace")
    _check("--service-account", _DNS_LABEL, (service_account,), "the name of a ServiceAccount")
    if bool(cluster) != bool(resource_group):
        raise click.UsageError("saw one of --cluster and --resource-group, expected both for an AKS cluster; without AKS neither")
    if not node_groups and not cluster:
        raise click.UsageError("saw neither --cluster nor --node-resource-group, expected where the machines are; give one of them")
    if not node_groups:
        # AKS's own name, of which only the location is unknown here.
        node_groups = (f"MC_{resource_group}_{cluster}_LOCATION",)
        shown = f"`az aks show --name {cluster} --resource-group {resource_group} --query nodeResourceGroup`"
        click.echo(f"note: saw no --node-resource-group; replace {node_groups[0]} by what {shown} prints", err=True)
    document = custom_roles(
        subscription.lower(),
        cluster=cluster,
        cluster_group=resource_group,
        node_groups=node_groups,
        subnets=subnets,
        change=not read_only,
    )
    if issuer:
        document["federatedCredential"] = federated_credential(issuer, namespace, service_account)
    click.echo(json.dumps(document, indent=2))


def _check(option: str, pattern: re.Pattern[str], texts: Iterable[str], expected: str) -> None:
    """Refuse a value of ``option`` that the whole ``pattern`` does not match."""
    for text in texts:
        if not pattern.fullmatch(text):
            raise click.BadParameter(f"saw {text!r}, expected {expected}", param_hint=option)
