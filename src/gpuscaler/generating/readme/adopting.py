"""The warning for clusters that exist: gpuscaler manages more than the groups that the files add.

Facts: docs/reference/aws.md, "Which groups are adopted", and docs/reference/azure.md, "Which pools are adopted" and "What is set aside".
"""

from collections.abc import Iterator

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER, ENABLED
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import KOPS
from gpuscaler.generating.kubernetes.values import VALUES
from gpuscaler.generating.readme.layout import paragraph


def adoption_warning(description: Description) -> Iterator[str]:
    """Yield the lines of the section for a cluster that exists."""
    key = "config.azure.subscriptions[0].exclude" if description.cloud == "azure" else "config.aws.exclude"
    yield from paragraph(
        f"**gpuscaler will manage groups of {description.cluster.name} that exist already**, not only those of these files: it buys "
        "machines in them for pending pods, and removes their machines when they are idle. These are:"
    )
    yield ""
    for adopted in _adopted(description):
        yield from paragraph(adopted, "- ")
    yield from ("", "So, before you apply anything:", "")
    yield from paragraph(
        f"Leave out what is not for gpuscaler: list names, or patterns such as `system-*`, in `{key}` of `{VALUES}`. `gpuscaler pools` in "
        "the step of that file shows what is left.",
        "1. ",
    )
    yield from paragraph(
        "Stop any other autoscaler of the groups that gpuscaler gets: two autoscalers undo each other's work. "
        f"{_other_autoscaler(description)} `$GPUSCALER/docs/how-to/run-beside-them.md` says how they share a cluster; "
        "`move-from-cluster-autoscaler.md` and `move-from-karpenter.md` in the same folder, how one group after the other is handed over.",
        "2. ",
    )
    yield from paragraph(
        f"Compare `limits` of `{VALUES}` with what runs: they count the machines of all these groups, not only of the new ones.", "3. "
    )
    yield ""
    yield from paragraph(f"`{VALUES}` has `controller.dryRun: true`: until you delete it, gpuscaler only logs what it would do.")
    yield ""


def _adopted(description: Description) -> Iterator[str]:
    name = description.cluster.name
    if description.cloud == "azure":
        yield (
            "every agent pool with GPUs whose autoscaler of AKS is off, with a minimum of 0 and a maximum of 1000 machines; an entry in "
            f"`config.pools` of `{VALUES}` sets others"
        )
        return
    if description.tool == KOPS:
        yield "every InstanceGroup of workers, also those without GPUs, which CoreDNS runs on: exclude those"
    else:
        yield "every managed node group of EKS with GPUs"
    yield f"every Auto Scaling group with the tags `{ENABLED}` and `{CLUSTER_AUTOSCALER}{name}`, also without GPUs" + (
        "" if description.tool == KOPS else ", unless EKS manages it"
    )


def _other_autoscaler(description: Description) -> str:
    if description.cloud == "azure":
        return "AKS' own must be off for a pool; node auto-provisioning must not be meant for the same pods."
    if description.tool == KOPS:
        return "The new groups have `autoscale: false`, which keeps them from the Cluster Autoscaler that kOps installs."
    return "A Cluster Autoscaler with auto-discovery takes the new groups, too: they have its tags."
