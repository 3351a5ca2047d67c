"""All files of a description: which there are, and the README about them."""

from collections.abc import Callable, Iterable

from gpuscaler.generating.aws.cloudformation import cloudformation_files
from gpuscaler.generating.aws.eksctl import eksctl_files, eksctl_identity_files
from gpuscaler.generating.aws.kops import kops_files
from gpuscaler.generating.aws.terraform.files import terraform_files
from gpuscaler.generating.azure.terraform import azure_terraform_files
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.classes import class_files
from gpuscaler.generating.kubernetes.device_plugin import device_plugin_files
from gpuscaler.generating.kubernetes.metrics import metrics_files
from gpuscaler.generating.kubernetes.namespaces import namespace_files
from gpuscaler.generating.kubernetes.network_policies import network_policy_files
from gpuscaler.generating.kubernetes.teams import team_files
from gpuscaler.generating.kubernetes.values import values_files
from gpuscaler.generating.kubernetes.workloads.gang import gang_files
from gpuscaler.generating.kubernetes.workloads.inference import inference_files
from gpuscaler.generating.kubernetes.workloads.notebook import notebook_files
from gpuscaler.generating.kubernetes.workloads.placing import omitted
from gpuscaler.generating.kubernetes.workloads.training import training_files
from gpuscaler.generating.readme.page import readme
from gpuscaler.generating.writing.files import GeneratedFile, text_file

#: What writes the files, in the order in which they are applied. Each writer yields nothing for descriptions that are not its own.
_WRITERS: tuple[Callable[[Description], Iterable[GeneratedFile]], ...] = (
    eksctl_files,
    cloudformation_files,
    eksctl_identity_files,
    kops_files,
    terraform_files,
    azure_terraform_files,
    namespace_files,
    class_files,
    device_plugin_files,
    team_files,
    network_policy_files,
    metrics_files,
    values_files,
    training_files,
    gang_files,
    notebook_files,
    inference_files,
)


def files_of(description: Description) -> tuple[GeneratedFile, ...]:
    """Return the files in the order in which they are applied, and first the README that lists them."""
    files = tuple(file for write in _WRITERS for file in write(description))
    return (text_file("README.md", "this page", readme(description, files, notes_of(description))), *files)


def notes_of(description: Description) -> tuple[str, ...]:
    """Return what a person should know before reading the files, such as types that were chosen, as whole sentences."""
    return (*description.notes, *omitted(description))
