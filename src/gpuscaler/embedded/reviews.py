"""What a client asks about itself: who it is, and what it may do. Whoever is let in here may do everything.

The questions are not read: there is one answer. Source of the kinds: ``k8s.io/api/authorization/v1`` and ``authentication/v1``.
"""

from typing import Any, Final

from gpuscaler.embedded.failures import method_not_allowed
from gpuscaler.embedded.replies import json_reply
from gpuscaler.kube.transport import Answer, Request

#: Who everybody is.
USER: Final = {"username": "gpuscaler-embedded", "groups": ["system:masters", "system:authenticated"]}
_EVERYTHING: Final = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_ANSWERS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": ("authorization.k8s.io/v1", "SelfSubjectAccessReview", {"allowed": True}),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": ("authorization.k8s.io/v1", "SelfSubjectRulesReview", _EVERYTHING),
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": ("authentication.k8s.io/v1", "SelfSubjectReview", {"userInfo": USER}),
}


def answer(request: Request) -> Answer | None:
    """The answer to a review, or None where ``request`` is about something else."""
    found = _ANSWERS.get(request.path)
    if found is None:
        return None
    if request.method != "POST":
        raise method_not_allowed()
    version, kind, status = found
    return json_reply({"kind": kind, "apiVersion": version, "metadata": {}, "spec": {}, "status": status}, status=201)
