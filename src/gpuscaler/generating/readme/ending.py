"""How a person sees that it works, and how everything is removed.

Commands: eksctl's user guide, "Work with node groups" and "EKS Pod Identity Associations"; ``kops delete instancegroup``; 2026-11-26.
"""

from collections.abc import Iterator, Sequence

from gpuscaler.generating.aws.eksctl import CLUSTER_PATH, IDENTITY_PATH
from gpuscaler.generating.aws.names import base_name
from gpuscaler.generating.description.resolved import EXPORTER_NAMESPACE, SERVICE_ACCOUNT, Description
from gpuscaler.generating.description.settings import EKSCTL, KOPS, TERRAFORM
from gpuscaler.generating.kubernetes.existing import exists
from gpuscaler.generating.kubernetes.values import VALUES
from gpuscaler.generating.writing.files import GeneratedFile, Step


def works(description: Description) -> Iterator[Step]:
    """Yield how a person sees that the set-up works."""
    namespace = description.controller.namespace
    if exists(description):
        yield Step(say="A dry run writes no status, so do this when you have deleted `dryRun: true`.")
    yield Step(
        say="gpuscaler's pods run, `status` lists each described group as a pool and no problem, and the doctor finds nothing:",
        commands=f"kubectl --namespace {namespace} get pods\ngpuscaler status --namespace {namespace}\ngpuscaler doctor --config {VALUES}",
    )
    yield Step(
        say="Then create an example, if there are any below. Within minutes there is a machine for it; until then, "
        "`gpuscaler why pod NAMESPACE/NAME` says what the pod waits for:",
        commands="kubectl get nodes --label-columns node.kubernetes.io/instance-type,topology.kubernetes.io/zone",
    )


def removal(description: Description, files: Sequence[GeneratedFile]) -> Iterator[Step]:
    """Yield how everything is removed, in order. ``files`` are those that were written."""
    namespace = description.controller.namespace
    yield Step(
        say="Remove the examples and all other pods with GPUs, and the claims of their volumes, whose disks cost money until then. Ten "
        "minutes later `status` lists no machine that was bought:",
        commands=f"kubectl get persistentvolumeclaims --all-namespaces\ngpuscaler status --namespace {namespace}",
    )
    yield Step(
        say="Uninstall gpuscaler and its exporter. Machines that are left go on running and costing money:",
        commands=f"helm uninstall gpuscaler --namespace {namespace}\nhelm uninstall gpuscaler --namespace {EXPORTER_NAMESPACE}",
    )
    if exists(description):
        yield Step(
            say="Delete what `kubernetes/` created and nothing else uses by now, object by object, but not `kubernetes/namespaces.yaml`: "
            "with a namespace, everything in it is deleted. Then delete the groups and the rights:",
            commands="\n".join(_groups(description, files)),
        )
    else:
        yield Step(say="Delete the cluster, with everything in it:", commands="\n".join(_cluster(description)))


def _cluster(description: Description) -> Iterator[str]:
    if description.tool == TERRAFORM:
        yield "terraform -chdir=terraform destroy"
        return
    region = description.cluster.region
    yield f"eksctl delete cluster --region {region} --name {description.cluster.name} --wait"
    yield _stack(description)


def _groups(description: Description, files: Sequence[GeneratedFile]) -> Iterator[str]:
    name, region = description.cluster.name, description.cluster.region
    if description.tool == TERRAFORM:
        yield "terraform -chdir=terraform destroy"
        return
    if description.tool == KOPS:
        yield f"for group in {' '.join(group.name for group in description.groups)}; do"
        yield f'  kops delete instancegroup "$group" --name {name} --yes'
        yield "done"
        yield "# Take the ServiceAccount of gpuscaler out of the cluster's spec, so that the policy of the stack is no longer used."
        yield f"kops edit cluster --name {name} && kops update cluster --name {name} --yes"
    if description.tool == EKSCTL:
        yield f"eksctl delete nodegroup --config-file={CLUSTER_PATH} --approve"
        if any(file.path == IDENTITY_PATH for file in files):
            account = f"--namespace={description.controller.namespace} --service-account-name={SERVICE_ACCOUNT}"
            yield f"eksctl delete podidentityassociation --region={region} --cluster={name} {account}"
    yield _stack(description)


def _stack(description: Description) -> str:
    return f"aws cloudformation delete-stack --region {description.cluster.region} --stack-name {base_name(description)}"
