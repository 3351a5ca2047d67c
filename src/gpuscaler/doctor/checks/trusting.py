"""Whom commands may help: the one place that decides it.

In a shared cluster, tenants choose the names, images, labels and flags of their objects: nothing of it proves what a program is. Its
namespace does, if only administrators may write there. A command that grants rights beyond a namespace, sends requests to another
namespace, or changes objects of one namespace because of those of another, is printed only if the one whom it helps is in such a
namespace; else the finding says what a person has to verify.
"""

from typing import Final

from gpuscaler.doctor.evidence import Evidence

#: Kubernetes' own, in which no tenant may write: who does can take over the cluster.
SYSTEM_NAMESPACES: Final = frozenset({"kube-system", "kube-public", "kube-node-lease"})


def may_help(evidence: Evidence, namespace: str, *, within: str | None = None) -> bool:
    """Whether a command may help what is in ``namespace``: one of the system, or one that the run file names.

    ``within`` is the only namespace in which the command has an effect, if it has none beyond: there, anyone who may write may be helped.
    """
    return namespace in SYSTEM_NAMESPACES or namespace in evidence.named or (within is not None and namespace == within)


def verify(what: str, namespace: str) -> str:
    """What a person has to verify before helping ``what``, as a clause."""
    return f"verify first that {what} in namespace {namespace} is what it seems: anyone who may write there can name an object or image so"
