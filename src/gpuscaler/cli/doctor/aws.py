"""Reads the account that a run file names, for ``gpuscaler doctor``."""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING

from gpuscaler.cli.doctor.reading import with_documents
from gpuscaler.doctor.checks.programs import GPUSCALER, programs
from gpuscaler.doctor.checks.trusting import may_help
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import ACCOUNT, Evidence

if TYPE_CHECKING:
    from gpuscaler.clouds.aws.api.calls import Calls
    from gpuscaler.settings import RunSettings
    from gpuscaler.settings.clouds.aws import AwsSettings

_ROLE = "eks.amazonaws.com/role-arn"
_AWS = "aws://"
#: Signs of nodes of EKS: labels, and the version of the kubelet.
_EKS_LABEL, _EKS_VERSION = "eks.amazonaws.com/", "-eks-"


def with_aws_account(evidence: Evidence, settings: "RunSettings") -> Evidence:
    """``evidence`` with what the AWS account of ``settings`` has, as far as the caller's rights go."""
    from gpuscaler.clouds.aws.api.calls import Calls, MissingPackageError

    try:
        calls = Calls(sleep=time.sleep, random=SystemRandom(), endpoint_url=settings.aws.endpoint_url)
    except MissingPackageError as error:
        return replace(evidence, unread={**evidence.unread, ACCOUNT: str(error)})
    return inspected(evidence, settings.aws, calls)


def inspected(evidence: Evidence, aws: "AwsSettings", calls: "Calls") -> Evidence:
    """``evidence`` with what ``calls`` answer about the account of ``aws``."""
    from gpuscaler.clouds.aws.discovery.regions import Scope
    from gpuscaler.clouds.aws.inspecting.account import inspect_account

    # A tenant can name its objects like those of gpuscaler.
    accounts = sorted(_own_accounts(evidence), key=lambda account: not may_help(evidence, account.namespace))
    provider_ids = (node.provider_id for node in evidence.cluster.nodes.values())
    read = inspect_account(
        calls,
        Scope(aws.cluster, aws.groups, aws.tags, aws.exclude),
        regions=aws.regions,
        now=lambda: evidence.now,
        machines=frozenset(ident.rpartition("/")[2] for ident in provider_ids if ident.startswith(_AWS)),
        queue_url=aws.queue_url,
        principal=next((account.annotations[_ROLE] for account in accounts if _ROLE in account.annotations), ""),
        accounts=[(account.namespace or "default", account.name) for account in accounts],
        eks=_may_be_eks(evidence.of("Node")),
    )
    return with_documents(evidence, read.documents, read.unread)


def _own_accounts(evidence: Evidence) -> Iterator[Document]:
    """gpuscaler's own ServiceAccounts: that of its controller first, then those with the label of its chart."""
    controllers = {(program.namespace, program.account) for program in programs(evidence) if program.name == GPUSCALER}
    accounts = evidence.of("ServiceAccount")
    yield from (account for account in accounts if (account.namespace or "default", account.name) in controllers)
    yield from (account for account in accounts if account.labels.get("app.kubernetes.io/name") == "gpuscaler")


def _may_be_eks(nodes: Collection[Document]) -> bool:
    """Whether the cluster shows signs of EKS, or has no nodes that could show any."""
    versions = [node.text("status", "nodeInfo", "kubeletVersion") for node in nodes]
    labelled = any(label.startswith(_EKS_LABEL) for node in nodes for label in node.labels)
    return labelled or not versions or any(_EKS_VERSION in version for version in versions)
