"""Reads the account that a run file names, for ``gpuscaler doctor``."""

import time
from collections.abc import Iterable
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING

from gpuscaler.cli.doctor.reading import with_documents
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import ACCOUNT, Evidence

if TYPE_CHECKING:
    from gpuscaler.clouds.aws.api.calls import Calls
    from gpuscaler.settings import RunSettings
    from gpuscaler.settings.clouds.aws import AwsSettings

_ROLE = "eks.amazonaws.com/role-arn"
_AWS = "aws://"


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

    provider_ids = (node.provider_id for node in evidence.cluster.nodes.values())
    read = inspect_account(
        calls,
        Scope(aws.cluster, aws.groups, aws.tags, aws.exclude),
        regions=aws.regions,
        now=lambda: evidence.now,
        machines=frozenset(ident.rpartition("/")[2] for ident in provider_ids if ident.startswith(_AWS)),
        queue_url=aws.queue_url,
        principal=_role_of(evidence.of("ServiceAccount")),
    )
    return with_documents(evidence, read.documents, read.unread)


def _role_of(accounts: Iterable[Document]) -> str:
    """The IAM role of gpuscaler's own ServiceAccount, as its chart labels it; empty if there is none."""
    ours = (account for account in accounts if account.labels.get("app.kubernetes.io/name") == "gpuscaler")
    return next((account.annotations[_ROLE] for account in ours if _ROLE in account.annotations), "")
