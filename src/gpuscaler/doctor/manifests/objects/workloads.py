"""Workloads in files: GPUs that are requested in vain, and programs that end in objects that start them again."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpuscaler.doctor.documents import TEMPLATES, containers_of, template_of
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.accelerators import is_device

_REQUESTS = Mistake("L6", CRITICAL, "the API server refuses the pods: GPUs cannot be shared out by more than is requested")
_ENDS = Mistake("L7", WARNING, "it is started again each time that it ends, for ever, and keeps its GPUs and their nodes busy")
_ALL_GPUS = Mistake("L6", WARNING, "the container uses all GPUs of its machine, also those that other pods have requested")
#: Images of NVIDIA's and others' samples that compute something and end.
_SAMPLES = re.compile(
    r"(^|/)(cuda-sample|cuda-vector-add|cuda-vectoradd|vectoradd|vector-add|cuda-sample-devicequery|devicequery|nbody|gpu-burn|"
    r"cuda-samples?|tf-benchmarks|tf_cnn_benchmarks|nccl-tests)([:@-]|$)",
    re.IGNORECASE,
)
_PROGRAMS = re.compile(
    r"(^|/)(nvidia-smi|vectorAdd|deviceQuery|nbody|gpu_burn|gpu-burn|bandwidthTest|tf_cnn_benchmarks\.py|all_reduce_perf)$"
)
#: Arguments that make nvidia-smi and others go on.
_GOES_ON = re.compile(r"^(-l|--loop.*|-lms.*|dmon|pmon|daemon)$|while\s|sleep\s|tail\s-f|watch\s")


def find_gpu_requests(manifests: Manifests) -> Iterable[Finding]:
    """L6: GPUs whose request is not their limit."""
    for manifest, path, container in _containers(manifests):
        limits, requests = (_amounts(container, name) for name in ("limits", "requests"))
        for name, amount in requests.items():
            if not is_device(name) or limits.get(name) == amount:
                continue
            seen = f"{amount}, and no limit" if name not in limits else f"{amount}, and the limit {limits[name]}"
            resources: Path = (*path, "resources")
            new = changed(
                manifest.data, (*resources, "limits"), {**dict(_raw(container, "limits")), name: dict(_raw(container, "requests"))[name]}
            )
            yield _REQUESTS.at(
                manifest, (*resources, "requests", name), seen=seen, expected="a limit that is equal to the request", new=new
            )


def _containers(manifests: Manifests) -> Iterator[tuple[Manifest, Path, Any]]:
    """The containers of all files with their path."""
    for manifest in manifests.of(*TEMPLATES):
        template = template_of(manifest.document)
        for text, container in containers_of(template) if template is not None else ():
            yield manifest, (*TEMPLATES[manifest.document.kind], *manifest_path(text)), container


def manifest_path(text: str) -> Path:
    """``spec.containers[0]`` as a path."""
    spec, _, rest = text.partition(".")
    name, _, index = rest.rstrip("]").partition("[")
    return spec, name, int(index)


def _raw(container: Any, name: str) -> Iterable[tuple[str, Any]]:
    return tuple(container.part("resources", name).data.items())


def _amounts(container: Any, name: str) -> dict[str, str]:
    return {str(key): str(value) for key, value in _raw(container, name)}


def find_taken_gpus(manifests: Manifests) -> Iterable[Finding]:
    """L6: GPUs that a variable takes instead of a limit. Agents of nodes, which DaemonSets and privileged pods are, may look at all."""
    for manifest, path, container in _containers(manifests):
        if manifest.document.kind == "DaemonSet" or container.flag("securityContext", "privileged"):
            continue
        variables = container.value("env")
        for index, item in enumerate(variables if isinstance(variables, list) else ()):
            if isinstance(item, dict) and (item.get("name"), item.get("value")) == ("NVIDIA_VISIBLE_DEVICES", "all"):
                at = (*path, "env", index)
                yield _ALL_GPUS.at(
                    manifest,
                    at,
                    seen="NVIDIA_VISIBLE_DEVICES=all",
                    expected="the limit nvidia.com/gpu, for which the device plugin sets the variable",
                    new=removed(manifest.data, at if len(variables) > 1 else at[:-1]),
                    advice="remove the variable, and set the limit nvidia.com/gpu",
                )


def find_ending_programs(manifests: Manifests) -> Iterable[Finding]:
    """L7: programs that end, with GPUs, in a Deployment and the like."""
    for manifest, path, container in _containers(manifests):
        if manifest.document.kind not in ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController") or "initContainers" in path:
            continue
        words = (*container.texts("command"), *container.texts("args"))
        uses_gpus = any(is_device(str(name)) or "gpu" in str(name) for part in ("limits", "requests") for name, _ in _raw(container, part))
        if not uses_gpus or any(_GOES_ON.search(word) for word in words):
            continue
        program = next((word for word in words if _PROGRAMS.search(word.split()[0] if word.split() else "")), "")
        image = container.text("image")
        if program or (not words and _SAMPLES.search(image)):
            yield _ENDS.at(
                manifest,
                (*path, "command" if program and container.has("command") else "args" if program else "image"),
                seen=f"{program or image}, which computes something and ends, in a {manifest.document.kind}",
                expected="a Job",
                advice="write a Job of batch/v1, with restartPolicy: Never and without replicas and selector",
            )


LINTS = (
    Lint("L6", "requests of GPUs that are not their limits", find_gpu_requests),
    Lint("L6", "GPUs that are taken without a request", find_taken_gpus),
    Lint("L7", "programs that end, in Deployments", find_ending_programs),
)
