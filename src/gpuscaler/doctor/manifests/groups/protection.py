"""What else removes machines of a group, and what every pod on them may do."""

import re
from collections.abc import Iterable

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed
from gpuscaler.doctor.manifests.groups.groups import Group, groups_of, is_acs, sizes_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifests, Path

_UNPROTECTED = Mistake("L12", WARNING, "a smaller size of the group ends any machine, also those whose GPUs are in use")
_REBALANCED = Mistake("L12", WARNING, "AWS ends machines whose GPUs are in use, to have as many in each zone")
_WIDE = Mistake("L13", CRITICAL, "every pod on the machines may do all of that in the account")
_AUTOSCALER = Mistake("L13", WARNING, "every pod on the machines may change the size of groups and end machines")
_FORMER = Mistake("L13", WARNING, "the policy is out of date, and gives more rights than SSM needs")
_SECRET = Mistake("L14", CRITICAL, "everyone who may read the file or its history has the credential")
_SETS = Mistake(
    "L9", WARNING, "no autoscaler can add machines to it by a number: the engine is not developed any more, and AKS has no such pools"
)
_ALL = re.compile(r"(^|/)(AdministratorAccess|PowerUserAccess|IAMFullAccess|AmazonEC2FullAccess|AutoScalingFullAccess|AmazonS3FullAccess)$")
_SSM = "AmazonEC2RoleforSSM"
_REFERENCE = re.compile(r"/subscriptions/.*/vaults/.*|\$.*|\[.*\]|<.*>|\{\{.*|")


def find_unprotected(manifests: Manifests) -> Iterable[Finding]:
    """L12: groups with GPUs whose machines AWS removes by itself."""
    for group in groups_of(manifests):
        least, greatest = sizes_of(group)
        if greatest <= least or not any(group.gpus(manifests.machines)):
            continue
        if group.maker == "kops" and not group.document.flag("instanceProtection"):
            path: Path = ("spec", "instanceProtection")
            seen = "false" if group.document.has("instanceProtection") else "none"
            yield _UNPROTECTED.at(group.manifest, path, seen=seen, expected="true", new=changed(group.manifest.data, path, True))
        field = {"kops": "suspendProcesses", "eksctl": "asgSuspendProcesses"}.get(group.maker, "")
        suspended = group.document.texts(field) if field else ("AZRebalance",)
        if "AZRebalance" not in suspended and _zones(group) > 1:
            path = (*group.path, field)
            new = changed(group.manifest.data, path, [*suspended, "AZRebalance"])
            yield _REBALANCED.at(group.manifest, path, seen=", ".join(suspended) or "none", expected="AZRebalance", new=new)


def _zones(group: Group) -> int:
    document = group.document
    if group.maker == "kops":
        return max(len(document.texts("zones")), len(document.texts("subnets")))
    own = len(document.texts("availabilityZones")) or len(document.texts("subnets"))
    return own or len(group.manifest.document.texts("availabilityZones")) or 2


def find_wide_roles(manifests: Manifests) -> Iterable[Finding]:
    """L13: rights of the role of machines, which all of their pods have."""
    for group in groups_of(manifests):
        if group.maker not in ("eksctl", "managed"):
            continue
        path = (*group.path, "iam")
        for index, policy in enumerate(group.document.texts("iam", "attachPolicyARNs")):
            at = (*path, "attachPolicyARNs", index)
            if _ALL.search(policy):
                yield _WIDE.at(
                    group.manifest,
                    at,
                    seen=policy,
                    expected="no such policy on machines",
                    advice="remove it, and give the pods that need rights a role of their own: iam.podIdentityAssociations",
                )
            elif policy.endswith(f"/{_SSM}"):
                right = policy.replace(f"service-role/{_SSM}", _SSM).replace(_SSM, "AmazonSSMManagedInstanceCore")
                yield _FORMER.at(group.manifest, at, seen=policy, expected=right, new=changed(group.manifest.data, at, right))
        if group.document.part("iam", "withAddonPolicies").flag("autoScaler"):
            at = (*path, "withAddonPolicies", "autoScaler")
            yield _AUTOSCALER.at(
                group.manifest,
                at,
                seen="true",
                expected="false, and iam.podIdentityAssociations with wellKnownPolicies.autoScaler for the autoscaler alone",
                new=changed(group.manifest.data, at, False),
            )


def find_credentials(manifests: Manifests) -> Iterable[Finding]:
    """L14: the key of a service principal in an API model of acs-engine."""
    path = ("properties", "servicePrincipalProfile", "secret")
    for manifest in manifests.items:
        if is_acs(manifest) and not _REFERENCE.fullmatch(manifest.document.text(*path)):
            yield _SECRET.at(
                manifest,
                path,
                seen="a credential as plain text",
                expected="a reference to a key vault (keyvaultSecretRef), or a managed identity",
                advice="remove it, and renew it: everyone who may read the file has read it, and its history keeps it",
            )


def find_availability_sets(manifests: Manifests) -> Iterable[Finding]:
    """L9: pools of acs-engine without a scale set."""
    for group in groups_of(manifests):
        profile = group.document.text("availabilityProfile", default="AvailabilitySet")
        if group.maker == "acs" and profile == "AvailabilitySet":
            yield _SETS.at(
                group.manifest,
                (*group.path, "availabilityProfile"),
                seen=profile,
                expected="a node pool of AKS, which is a scale set",
                advice="make the pool in AKS",
            )


LINTS = (
    Lint("L12", "processes of groups that end machines", find_unprotected),
    Lint("L13", "rights of the role of machines", find_wide_roles),
    Lint("L9", "pools of availability sets", find_availability_sets),
    Lint("L14", "credentials in API models", find_credentials),
)
