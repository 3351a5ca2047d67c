"""What an operator should mend although everything works, or nothing does: the certificate, and rights that are wider than needed."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import Resource
from gpuscaler.metrics.certificates import mistakes
from gpuscaler.serving.tls import LiveTls

_LOG = structlog.get_logger(__name__)
#: Seconds between looks.
LOOK = 60.0
_OWN = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
_OTHERS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
_HPA = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
_HPA_GROUPS = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")


class _Wide(NamedTuple):
    """A right that nobody needs here; without a ``user`` it is the server's own account's."""

    about: str
    attributes: Mapping[str, str]
    problem: str
    user: str = ""


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status | None = None


_review = msgspec.json.Decoder(_Review).decode


@dataclass(slots=True)
class Upkeep:
    """Looks at the certificate of ``tls``, which is to be for ``host``, and at rights to ``groups``, while :meth:`run` runs.

    ``findings`` are by what they are about. ``own`` asks about its own account, and is None where that is a person's, whose kubeconfig may
    say anything; ``others`` asks about those of others. ``wall`` is Unix time.
    """

    tls: LiveTls
    host: str
    own: Client | None
    others: Client
    groups: Collection[str]
    wall: Callable[[], float]
    findings: dict[str, str] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Until cancelled; what is found is logged once, and again when it is over."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        found = {**self._certificate(), **await self._rights()}
        for about, problem in found.items():
            if self.findings.get(about) != problem:
                _LOG.warning("to be mended", about=about, problem=problem)
        for about in self.findings.keys() - found.keys():
            _LOG.info("mended", about=about)
        self.findings = found

    def _certificate(self) -> dict[str, str]:
        try:
            pem = self.tls.certificate.read_bytes()
        except OSError as error:
            return {"certificate": f"{error.filename}: saw {error.strerror}, expected a PEM file"}
        found = [*filter(None, [self.tls.trouble]), *mistakes(pem, host=self.host, now=self.wall())]
        return {"certificate": f"{self.tls.certificate}: {'; '.join(found)}"} if found else {}

    async def _rights(self) -> dict[str, str]:
        found = {}
        for right in _wide(self.groups):
            held = await self._holds(right)
            # What could not be asked now is as it was.
            if held or (held is None and right.about in self.findings):
                found[right.about] = right.problem
        return found

    async def _holds(self, right: _Wide) -> bool | None:
        spec: dict[str, Any] = {"resourceAttributes": right.attributes}
        if right.user:
            spec |= {"user": right.user, "groups": _HPA_GROUPS}
        client, kind = (self.others, _OTHERS) if right.user else (self.own, _OWN)
        if client is None:
            return False
        try:
            answer = _review(await client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}))
        except (ApiError, Unreachable, msgspec.MsgspecError):
            return None
        return answer.status is not None and answer.status.allowed


def _wide(groups: Collection[str]) -> list[_Wide]:
    own = "expected what the chart's ClusterRole says; bind the account to that one"
    return [
        _Wide(
            "own rights",
            {"verb": "*", "group": "*", "resource": "*"},
            f"saw that its own account may do everything in the cluster, {own}",
        ),
        _Wide("own right to Secrets", {"verb": "list", "resource": "secrets"}, f"saw that its own account may read all Secrets, {own}"),
        *(
            _Wide(
                f"rights of autoscalers to {group}",
                {"verb": "*", "group": group, "resource": "*"},
                f"saw every verb on every resource of {group} for {_HPA}, expected get and list; narrow its role",
                _HPA,
            )
            for group in sorted(groups)
        ),
    ]
