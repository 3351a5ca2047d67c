"""Versions of the API that are not served any more."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscaler.doctor.documents import TEMPLATES
from gpuscaler.doctor.findings import CRITICAL, INFO, Finding
from gpuscaler.doctor.manifests.editing import changed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests
from gpuscaler.model.api_versions import Removal, removal_of

_REMOVED = Mistake("L4", CRITICAL, "the API server refuses the object")
#: Kinds of other programs that were replaced, by group: what they were replaced by.
_REPLACED = {
    ("karpenter.sh/v1alpha5", "Provisioner"): ("Karpenter 0.33", "a NodePool of karpenter.sh/v1"),
    ("karpenter.sh/v1alpha5", "Machine"): ("Karpenter 0.33", "a NodeClaim of karpenter.sh/v1"),
    ("karpenter.k8s.aws/v1alpha1", "AWSNodeTemplate"): ("Karpenter 0.33", "an EC2NodeClass of karpenter.k8s.aws/v1"),
    ("karpenter.sh/v1beta1", "NodePool"): ("Karpenter 1.1", "a NodePool of karpenter.sh/v1"),
    ("karpenter.k8s.aws/v1beta1", "EC2NodeClass"): ("Karpenter 1.1", "an EC2NodeClass of karpenter.k8s.aws/v1"),
    ("keda.k8s.io/v1alpha1", "ScaledObject"): ("KEDA 2", "a ScaledObject of keda.sh/v1alpha1"),
    ("keda.k8s.io/v1alpha1", "TriggerAuthentication"): ("KEDA 2", "a TriggerAuthentication of keda.sh/v1alpha1"),
}
#: Versions of files for tools, by the version: what it is, what to write, the mistake, and how if an edit of that line does not do.
_MIGRATE = (
    "write it as v1beta4, in which extraArgs are lists of name and value; `kubeadm config migrate` of 1.26 makes a v1beta3 of v1beta2"
)
_OF_TOOLS: Final[Mapping[str, tuple[str, str, Mistake, str]]] = {
    "eksctl.io/v1alpha4": (
        *("eksctl.io/v1alpha4, which eksctl does not read any more", "eksctl.io/v1alpha5"),
        *(Mistake("L4", CRITICAL, "eksctl refuses the file"), ""),
    ),
    "kops/v1alpha2": (
        *("kops/v1alpha2, the name until kOps 1.15", "kops.k8s.io/v1alpha2"),
        *(Mistake("L4", INFO, "kops still reads it, other programs do not"), ""),
    ),
    **{
        f"kubeadm.k8s.io/{version}": (
            *(f"kubeadm.k8s.io/{version}, which no release from Kubernetes 1.27 on reads", "kubeadm.k8s.io/v1beta4"),
            *(Mistake("L4", CRITICAL, "`kubeadm` refuses the file"), _MIGRATE),
        )
        for version in ("v1alpha1", "v1alpha2", "v1alpha3", "v1beta1", "v1beta2")
    },
}


def find_removed_versions(manifests: Manifests) -> Iterable[Finding]:
    """L4: objects of a version that no server has."""
    for manifest in manifests.items:
        version, kind = manifest.document.api_version, manifest.document.kind
        removal = removal_of(version, kind)
        if removal is not None:
            yield _finding(manifest, removal)
        elif (version, kind) in _REPLACED:
            gone, instead = _REPLACED[version, kind]
            yield _REMOVED.at(
                manifest,
                ("apiVersion",),
                seen=f"{version}, removed with {gone}",
                expected=instead,
                advice=f"write {instead}; its fields differ",
            )
        elif version in _OF_TOOLS:
            seen, instead, mistake, advice = _OF_TOOLS[version]
            new = changed(manifest.data, ("apiVersion",), instead) if not advice else None
            yield mistake.at(manifest, ("apiVersion",), seen=seen, expected=instead, new=new, advice=advice)


def _finding(manifest: Manifest, removal: Removal) -> Finding:
    if not removal.instead:
        return _REMOVED.at(
            manifest,
            ("apiVersion",),
            seen=f"{removal.version}, removed in Kubernetes {removal.gone}",
            expected=f"no {manifest.document.kind}: the kind does not exist any more",
            advice="remove it, and label the namespace pod-security.kubernetes.io/enforce instead",
        )
    return _REMOVED.at(
        manifest,
        ("apiVersion",),
        seen=f"{removal.version}, removed in Kubernetes {removal.gone}",
        expected=removal.instead,
        new=_renewed(manifest, removal),
        advice=f"gpuscaler convert {manifest.file.name} prints it as {removal.instead}",
    )


def _renewed(manifest: Manifest, removal: Removal) -> Any:
    """The object in the new version; None if more has to be changed than an edit of lines should."""
    if not removal.same:
        return None
    new = changed(manifest.data, ("apiVersion",), removal.instead)
    if removal.instead != "apps/v1":
        return new
    spec = new.get("spec")
    if (
        manifest.document.kind not in TEMPLATES
        or not isinstance(spec, dict)
        or any(key in spec for key in ("rollbackTo", "templateGeneration"))
    ):
        return None
    if spec.get("selector"):
        return new
    labels = manifest.document.part("spec", "template", "metadata").pairs("labels")
    return changed(new, ("spec", "selector"), {"matchLabels": labels}) if labels else None


LINTS = (Lint("L4", "versions of the API that were removed", find_removed_versions),)
