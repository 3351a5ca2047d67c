"""Checks for rights that are wider than metrics need."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import Resource

_OWN = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
_OTHERS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
_AUTOSCALERS = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
_EXPECTED = "expected the rights of the chart's ClusterRole; bind the account to that role"


class ExcessiveRight(NamedTuple):
    """A right that is too wide. An empty ``user`` is the caller itself. ``problem`` is the message if the right is held."""

    about: str
    attributes: Mapping[str, str]
    problem: str
    user: str = ""


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status | None = None


_review = msgspec.json.Decoder(_Review).decode


def excessive_server_rights(user: str = "") -> list[ExcessiveRight]:
    """Rights of the account that the server runs as; ``user`` is its name if another account checks them."""
    account = user or "its own account"
    return [
        ExcessiveRight(
            "own rights",
            {"verb": "*", "group": "*", "resource": "*"},
            f"saw that {account} may do everything in the cluster, {_EXPECTED}",
            user,
        ),
        ExcessiveRight(
            "own right to Secrets", {"verb": "list", "resource": "secrets"}, f"saw that {account} may read all Secrets, {_EXPECTED}", user
        ),
    ]


def excessive_autoscaler_rights(groups: Collection[str]) -> list[ExcessiveRight]:
    """Rights of the account that the HorizontalPodAutoscaler uses to read metrics of ``groups``."""
    return [
        ExcessiveRight(
            f"rights of autoscalers to {group}",
            {"verb": "*", "group": group, "resource": "*"},
            f"saw every verb on every resource of {group} for {_AUTOSCALERS}, expected get and list; narrow its role",
            _AUTOSCALERS,
        )
        for group in sorted(groups)
    ]


async def has_right(client: Client, right: ExcessiveRight) -> bool | None:
    """Whether the right is held; None if that is unknown."""
    spec: dict[str, Any] = {"resourceAttributes": right.attributes}
    if right.user:
        namespace = right.user.split(":")[2]
        spec |= {"user": right.user}
        spec["groups"] = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    kind = _OTHERS if right.user else _OWN
    try:
        answer = _review(await client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}))
    except (ApiError, Unreachable, msgspec.MsgspecError):
        return None
    return answer.status is not None and answer.status.allowed
