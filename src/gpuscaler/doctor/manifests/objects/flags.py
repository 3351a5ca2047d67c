"""Flags of the control plane that were removed: a program with an unknown flag does not start."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.findings import CRITICAL, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.objects.workloads import manifest_path
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path

_UNKNOWN = Mistake("L16", CRITICAL, "the program does not start with an unknown flag")
_PLACEHOLDER = Mistake("L16", CRITICAL, "the autoscaler finds no group, and never buys a machine")
#: Flags by program, with the release that does not know them any more. Source: the pull requests of kubernetes/kubernetes that removed
#: them: 90368, 124948, 115840, 108476, 106859 (API server, with 105032), 106865 (scheduler, with 102239 and 105424), and the change logs.
_GONE: Final[Mapping[str, Mapping[str, str]]] = {
    "kube-controller-manager": {
        "horizontal-pod-autoscaler-use-rest-clients": "1.22",
        "horizontal-pod-autoscaler-upscale-delay": "1.31",
        "horizontal-pod-autoscaler-downscale-delay": "1.31",
        "enable-taint-manager": "1.27",
        "pod-eviction-timeout": "1.27",
        "experimental-cluster-signing-duration": "1.25",
        "address": "1.24",
        "port": "1.24",
    },
    "kube-apiserver": {
        "insecure-port": "1.24",
        "insecure-bind-address": "1.24",
        "address": "1.24",
        "port": "1.24",
        "enable-swagger-ui": "1.24",
    },
    "kube-scheduler": {
        "algorithm-provider": "1.22",
        "policy-config-file": "1.23",
        "policy-configmap": "1.23",
        "policy-configmap-namespace": "1.23",
        "use-legacy-policy-config": "1.23",
        "port": "1.24",
        "address": "1.24",
    },
}
#: Names in lists of flags that a program does not know any more, by flag: plugins of kube-apiserver, and gates of all programs. Sources:
#: the change logs of Kubernetes 1.20 and 1.25, and the page "Feature Gates (removed)" of its documentation.
_GONE_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "enable-admission-plugins": {"PodPreset": "1.20", "PodSecurityPolicy": "1.25"},
    "feature-gates": {"DevicePlugins": "1.28", "Accelerators": "1.11"},
}
#: The parts of kubeadm's ClusterConfiguration, and the programs that they configure.
_KUBEADM: Final = {"controllerManager": "kube-controller-manager", "apiServer": "kube-apiserver", "scheduler": "kube-scheduler"}
#: Former names of the same in kubeadm's oldest versions.
_FORMER: Final = {"controllerManagerExtraArgs": "kube-controller-manager", "apiServerExtraArgs": "kube-apiserver"}


def find_removed_flags(manifests: Manifests) -> Iterable[Finding]:
    """L16: flags that the program of today does not know."""
    for manifest in manifests.items:
        for program, flag, path in _flags(manifest):
            gone = _GONE.get(program, {}).get(flag)
            if gone is not None:
                yield _UNKNOWN.at(
                    manifest,
                    path,
                    seen=f"--{flag}, removed from {program} in Kubernetes {gone}",
                    expected="no such flag",
                    new=removed(manifest.data, path),
                    advice="remove the flag",
                )


def find_removed_names(manifests: Manifests) -> Iterable[Finding]:
    """L16: plugins and feature gates in flags that the program of today does not know."""
    for manifest in manifests.items:
        for program, flag, path in _flags(manifest):
            where, lead, text = _text_of(manifest, flag, path)
            names = text.split(",") if program in _GONE else []
            for name in names:
                gone = _GONE_NAMES.get(flag, {}).get(name.partition("=")[0].strip())
                if gone is not None:
                    rest = ",".join(other for other in names if other != name)
                    yield _UNKNOWN.at(
                        manifest,
                        where,
                        seen=f"{name} in --{flag}, removed from {program} in Kubernetes {gone}",
                        expected=f"--{flag}={rest}" if rest else "no such flag",
                        new=changed(manifest.data, where, f"{lead}{rest}") if rest else removed(manifest.data, path),
                        advice="remove it from the flag",
                    )


def _text_of(manifest: Manifest, flag: str, path: Path) -> tuple[Path, str, str]:
    """Where the value of the flag at ``path`` is, what is before it there, and the value."""
    for where in ((*path, "value"), path):
        entry = manifest.entry(where)
        if entry is not None and isinstance(entry.value, str):
            lead = f"--{flag}=" if entry.value.startswith(f"--{flag}=") else ""
            return where, lead, entry.value.removeprefix(lead)
    return path, "", ""


def kubeadm_values(manifest: Manifest) -> Iterator[Path]:
    """The paths that may hold values of flags in files of kubeadm."""
    for _, _, path in _kubeadm_flags(manifest.document):
        yield from (path, (*path, "value"))


def _flags(manifest: Manifest) -> Iterator[tuple[str, str, Path]]:
    """The flags of programs of the control plane, with their path."""
    document = manifest.document
    yield from _kubeadm_flags(document)
    template = template_of(document)
    for text, container in containers_of(template) if template is not None else ():
        yield from _words(document, text, container)


def _kubeadm_flags(document: Document) -> Iterator[tuple[str, str, Path]]:
    start: Path = ("spec", "kubeadmConfigSpec", "clusterConfiguration")
    bases: tuple[Path, ...] = ((),) if document.kind in ("ClusterConfiguration", "MasterConfiguration") else ()
    if document.kind in ("KubeadmControlPlane", "KubeadmConfig", "KubeadmConfigTemplate"):
        bases = (start, ("spec", "clusterConfiguration"), ("spec", "template", "spec", "clusterConfiguration"))
    for base in bases:
        names: list[tuple[Path, str]] = [((part, "extraArgs"), program) for part, program in _KUBEADM.items()]
        names += [((part,), program) for part, program in _FORMER.items()]
        for steps, program in names:
            path: Path = (*base, *steps)
            value = document.value(*(str(step) for step in path))
            if isinstance(value, dict):
                yield from ((program, str(name), (*path, name)) for name in value)
            elif isinstance(value, list):
                named = ((index, item.get("name")) for index, item in enumerate(value) if isinstance(item, dict))
                yield from ((program, str(name), (*path, index)) for index, name in named)


def _words(document: Document, text: str, container: Document) -> Iterator[tuple[str, str, Path]]:
    words = [(name, index, word) for name in ("command", "args") for index, word in enumerate(container.texts(name))]
    program = next((word.rpartition("/")[2] for _, _, word in words if word.rpartition("/")[2] in _GONE), "")
    for name, index, word in words:
        if program and word.startswith("--"):
            path = (*TEMPLATES[document.kind], *manifest_path(text), name, index)
            yield program, word.lstrip("-").partition("=")[0], path


def find_placeholders(manifests: Manifests) -> Iterable[Finding]:
    """L16: the placeholder of Cluster Autoscaler's example that was not replaced."""
    for manifest in manifests.of("Deployment"):
        for text, container in containers_of(template_of(manifest.document) or Document({})):
            for name in ("command", "args"):
                for index, word in enumerate(container.texts(name)):
                    if word.startswith("--node-group-auto-discovery=") and ("<" in word or "YOUR" in word):
                        path = (*TEMPLATES["Deployment"], *manifest_path(text), name, index)
                        yield _PLACEHOLDER.at(
                            manifest,
                            path,
                            seen=word,
                            expected="the name of the cluster",
                            advice="write the name of the cluster between the signs",
                        )


LINTS = (
    Lint("L16", "flags that were removed", find_removed_flags),
    Lint("L16", "names in flags that were removed", find_removed_names),
    Lint("L16", "names in flags that were not filled in", find_placeholders),
)
