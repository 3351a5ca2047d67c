"""Which objects of files the rules know: everything else is valid for another program, and no rule looks at it."""

from collections.abc import Iterator

from gpuscaler.doctor.documents import TEMPLATES
from gpuscaler.doctor.findings import Unchecked
from gpuscaler.doctor.manifests.groups.groups import is_acs
from gpuscaler.doctor.manifests.groups.stacks import has_notices
from gpuscaler.doctor.manifests.objects.charts import has_known_values
from gpuscaler.doctor.manifests.objects.rules import has_rules
from gpuscaler.doctor.manifests.reading import Manifest, Manifests

_REASON = (
    "no rule knows anything in it; the rules are about objects of Kubernetes and of tools that make clusters, "
    "and about values of some charts"
)


def recognised(manifests: Manifests) -> tuple[Manifest, ...]:
    """The objects that rules are about."""
    return tuple(filter(_is_known, manifests.items))


def not_recognised(manifests: Manifests) -> Iterator[Unchecked]:
    """The files without any such object, unless they are not read for another reason, or not YAML."""
    known = {item.file.name for item in recognised(manifests)}
    known |= {file.name for file, _ in manifests.problems} | {entry.subject.rpartition(":")[0] for entry in manifests.unread}
    return (Unchecked("L1", file.name, _REASON) for file in manifests.files if file.name not in known)


def _is_known(manifest: Manifest) -> bool:
    document = manifest.document
    if document.kind:
        return bool(document.api_version) or document.kind in TEMPLATES
    return has_known_values(manifest) or has_rules(manifest) or is_acs(manifest) or has_notices(manifest)
