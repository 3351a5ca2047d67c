"""References between objects of the same files that disagree about a namespace, as after a move of some of them."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.findings import CRITICAL, Finding
from gpuscaler.doctor.manifests.editing import changed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path

_NO_RIGHTS = Mistake("L22", CRITICAL, "the program has none of the rights of the role")
_REFUSED = Mistake("L22", CRITICAL, "the API server refuses the binding")
_UNREACHED = Mistake(
    "L22", CRITICAL, "the API server does not reach the program: its metrics cannot be read, and no namespace can be deleted"
)
_DEFAULT = Mistake("L22", CRITICAL, "kubectl puts it into the namespace of the user's context, where the API server does not look for it")


def find_moved(manifests: Manifests) -> Iterable[Finding]:
    """L22: subjects of bindings, and Services of APIServices, that are in another namespace."""
    kustomized = any(manifests.of("Kustomization"))
    accounts, services = _namespaces(manifests, "ServiceAccount"), _namespaces(manifests, "Service")
    for manifest in manifests.of("ClusterRoleBinding", "RoleBinding"):
        for index, subject in enumerate(manifest.document.parts("subjects")):
            if subject.text("kind") == "ServiceAccount":
                yield from _subject(manifest, index, accounts, kustomized=kustomized)
    yield from _services(manifests, services)


def _services(manifests: Manifests, services: dict[str, list[Manifest]]) -> Iterator[Finding]:
    """Services that an APIService looks for in another namespace."""
    wanted: dict[str, dict[str, Manifest]] = {}
    for manifest in manifests.of("APIService"):
        name, namespace = manifest.document.text("spec", "service", "name"), manifest.document.text("spec", "service", "namespace")
        if name and namespace:
            wanted.setdefault(name, {})[namespace] = manifest
    for name, places in wanted.items():
        owners = services.get(name, [])
        if len(places) > 1 or any(owner.document.namespace in places for owner in owners):
            continue
        ((namespace, manifest),) = places.items()
        for owner in owners:
            if not owner.document.namespace:
                new = changed(owner.data, ("metadata", "namespace"), namespace)
                yield _DEFAULT.at(owner, ("metadata", "namespace"), seen="none", expected=f"{namespace}, as in {manifest.title}", new=new)
        elsewhere = _only_other(owners, namespace)
        if elsewhere:
            path: Path = ("spec", "service", "namespace")
            new = changed(manifest.data, path, elsewhere)
            yield _UNREACHED.at(manifest, path, seen=namespace, expected=f"{elsewhere}, where the Service is in these files", new=new)


def _subject(manifest: Manifest, index: int, accounts: dict[str, list[Manifest]], *, kustomized: bool) -> Iterator[Finding]:
    subject = manifest.document.parts("subjects")[index]
    path: Path = ("subjects", index, "namespace")
    owners = accounts.get(subject.text("name"), [])
    namespace = subject.text("namespace")
    elsewhere = _only_other(owners, namespace)
    if not namespace:
        # Kustomize fills it in.
        if manifest.document.kind == "ClusterRoleBinding" and not kustomized:
            new = changed(manifest.data, path, elsewhere) if elsewhere else None
            yield _REFUSED.at(
                manifest, ("subjects", index), seen="no namespace", expected=elsewhere or "the namespace of the ServiceAccount", new=new
            )
    elif elsewhere:
        new = changed(manifest.data, path, elsewhere)
        yield _NO_RIGHTS.at(manifest, path, seen=namespace, expected=f"{elsewhere}, where the ServiceAccount is in these files", new=new)


def _only_other(owners: list[Manifest], namespace: str) -> str:
    """The only namespace of ``owners``, if it is another; empty if one of them may be in ``namespace``."""
    found = {owner.document.namespace for owner in owners}
    return next(iter(found)) if len(found) == 1 and found != {namespace} and "" not in found else ""


def _namespaces(manifests: Manifests, kind: str) -> dict[str, list[Manifest]]:
    """The objects of a kind by name."""
    found: dict[str, list[Manifest]] = {}
    for manifest in manifests.of(kind):
        found.setdefault(manifest.document.name, []).append(manifest)
    return found


LINTS = (Lint("L22", "references to another namespace", find_moved),)
