"""Roles in files that allow everything."""

from collections.abc import Iterable

from gpuscaler.doctor.findings import INFO, WARNING, Finding
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifests

_ALL = Mistake("L21", WARNING, "who has the role, or takes over a pod that has it, owns the cluster and can read all Secrets")
_ADMIN = Mistake("L21", INFO, "who takes over a pod with this ServiceAccount owns the cluster and can read all Secrets")


def find_wide_roles(manifests: Manifests) -> Iterable[Finding]:
    """L21: all verbs on all resources, and ServiceAccounts that are administrators of the cluster."""
    for manifest in manifests.of("Role", "ClusterRole"):
        if manifest.document.name == "cluster-admin":
            continue
        for index, rule in enumerate(manifest.document.parts("rules")):
            if all("*" in rule.texts(name) for name in ("apiGroups", "resources", "verbs")):
                yield _ALL.at(
                    manifest,
                    ("rules", index),
                    seen="all verbs on all resources",
                    expected="the verbs and resources that the program needs",
                    advice="list them; the documentation of the program or its chart has them",
                )
    for manifest in manifests.of("ClusterRoleBinding"):
        subjects = manifest.document.parts("subjects")
        if manifest.document.text("roleRef", "name") == "cluster-admin" and any(item.text("kind") == "ServiceAccount" for item in subjects):
            yield _ADMIN.at(
                manifest,
                ("roleRef", "name"),
                seen="cluster-admin",
                expected="a role with what the program needs",
                advice="write a role for it",
            )


LINTS = (Lint("L21", "roles that allow everything", find_wide_roles),)
