"""Reviews of identity and access. Every accepted client may do everything, and there are no roles.

Source of the kinds: ``k8s.io/api/authorization/v1`` and ``authentication/v1``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuscaler.embedded.apiserver.wire import bodies
from gpuscaler.embedded.apiserver.wire.failures import method_not_allowed
from gpuscaler.embedded.apiserver.wire.replies import json_reply
from gpuscaler.kube.transport import Answer, Request

Json = Mapping[str, Any]
MASTERS: Final = "system:masters"
#: The user that every client is.
USER: Final = {"username": "gpuscaler-embedded", "groups": [MASTERS, "system:authenticated"]}
#: The user as which the controller of HorizontalPodAutoscalers reads metrics, and what it may read beyond objects.
AUTOSCALERS: Final = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
_METRICS: Final = ("custom.metrics.k8s.io", "external.metrics.k8s.io", "metrics.k8s.io")
_EVERYTHING: Final = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_AUTHORIZATION, _AUTHENTICATION = "authorization.k8s.io/v1", "authentication.k8s.io/v1"


class Reviews:
    """``tokens`` are the bearer tokens of :data:`USER`; None if no token is required."""

    def __init__(self, tokens: frozenset[str] | None) -> None:
        self._tokens = tokens or frozenset()
        self._answers: dict[str, tuple[str, str, Callable[[Json], Json]]] = {
            "selfsubjectaccessreviews": (_AUTHORIZATION, "SelfSubjectAccessReview", lambda _: {"allowed": True}),
            "selfsubjectrulesreviews": (_AUTHORIZATION, "SelfSubjectRulesReview", lambda _: _EVERYTHING),
            "selfsubjectreviews": (_AUTHENTICATION, "SelfSubjectReview", lambda _: {"userInfo": USER}),
            "subjectaccessreviews": (_AUTHORIZATION, "SubjectAccessReview", _access),
            "tokenreviews": (_AUTHENTICATION, "TokenReview", self._token),
        }

    def answer(self, request: Request) -> Answer | None:
        """The answer to a review, or None if ``request`` is about something else."""
        root, _, plural = request.path.rpartition("/")
        version, kind, status = self._answers.get(plural, ("", "", _access))
        if not version or root != f"/apis/{version}":
            return None
        if request.method != "POST":
            raise method_not_allowed()
        # All clients get the same answer about themselves, whatever they ask for.
        raw_spec = {} if kind.startswith("Self") else bodies.read_object(request).get("spec")
        spec = raw_spec if isinstance(raw_spec, dict) else {}
        return json_reply({"kind": kind, "apiVersion": version, "metadata": {}, "spec": spec, "status": status(spec)}, status=201)

    def _token(self, spec: Json) -> Json:
        if spec.get("token") in self._tokens:
            return {"authenticated": True, "user": USER}
        return {"authenticated": False, "error": "invalid bearer token"}


def _access(spec: Json) -> Json:
    groups, attributes = spec.get("groups"), spec.get("resourceAttributes")
    if isinstance(groups, list) and MASTERS in groups:
        return {"allowed": True}
    if spec.get("user") == AUTOSCALERS and isinstance(attributes, dict):
        return {"allowed": attributes.get("group") in _METRICS and attributes.get("verb") in ("get", "list")}
    return {"allowed": False, "reason": "this cluster has no roles: an accepted client may do everything, and others nothing"}
