"""Clusters of eksctl whose machines do not reach the APIs of AWS that autoscalers call."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.doctor.findings import CRITICAL, Finding
from gpuscaler.doctor.manifests.editing import changed
from gpuscaler.doctor.manifests.groups.groups import Group, groups_of, sizes_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.similar import nearest

_NO_ENDPOINT = Mistake("L23", CRITICAL, "autoscalers do not reach the API of Auto Scaling: no group ever grows or shrinks")
_NO_WAY = Mistake("L23", CRITICAL, "the machines reach no API of AWS: they pull no images, and no autoscaler works")
_REFUSED = Mistake("L23", CRITICAL, "eksctl refuses the file")
_ENDPOINTS: Final[Path] = ("privateCluster", "additionalEndpointServices")
#: What eksctl accepts there. Those for EC2, ECR, S3 and STS it makes in any case, that for EKS never. Source: the guide of eksctl, "EKS
#: Fully-Private Cluster", and pkg/apis/eksctl.io/v1alpha5/endpoint_services.go, November 2026.
_OPTIONAL: Final = ("autoscaling", "cloudformation", "logs")


def find_unreachable_apis(manifests: Manifests) -> Iterable[Finding]:
    """L23: private clusters without an endpoint for Auto Scaling, and private machines without a way out."""
    by_config: dict[int, list[Group]] = {}
    for group in groups_of(manifests):
        if group.maker in ("eksctl", "managed"):
            by_config.setdefault(id(group.manifest), []).append(group)
    for groups in by_config.values():
        manifest = groups[0].manifest
        if manifest.document.flag("privateCluster", "enabled"):
            yield from _private_cluster(manifest, groups)
        else:
            yield from _private_machines(manifest, groups)


def _private_cluster(manifest: Manifest, groups: list[Group]) -> Iterator[Finding]:
    document = manifest.document
    if document.flag("privateCluster", "skipEndpointCreation"):
        return  # The endpoints are made by other means, which the file does not show.
    services = document.texts("privateCluster", "additionalEndpointServices")
    right = list(services)
    for index, service in enumerate(services):
        if service not in _OPTIONAL:
            near = nearest(service, _OPTIONAL)
            right[index] = near or service
            path: Path = (*_ENDPOINTS, index)
            new = changed(manifest.data, path, near) if near else None
            expected = f"{near} (did you mean that?)" if near else f"one of {', '.join(_OPTIONAL)}"
            yield _REFUSED.at(manifest, path, seen=service, expected=expected, new=new, advice="remove it")
    grows = any(least < greatest for least, greatest in map(sizes_of, groups))
    if grows and "autoscaling" not in right:
        new = changed(manifest.data, _ENDPOINTS, [*services, "autoscaling"])
        seen = ", ".join(services) or "none"
        yield _NO_ENDPOINT.at(
            manifest, _ENDPOINTS, seen=seen, expected="autoscaling, since there are groups that change their size", new=new
        )


def _private_machines(manifest: Manifest, groups: list[Group]) -> Iterator[Finding]:
    document = manifest.document
    # Into a VPC that exists already, eksctl puts no gateway.
    if document.text("vpc", "nat", "gateway") != "Disable" or document.has("vpc", "id") or document.has("vpc", "subnets"):
        return
    private = [group for group in groups if group.document.flag("privateNetworking")]
    if private:
        yield _NO_WAY.at(
            manifest,
            ("vpc", "nat", "gateway"),
            seen=f"Disable, and privateNetworking in {', '.join(group.name for group in private[:3])}",
            expected="Single or HighlyAvailable, or privateCluster.enabled",
            advice="write gateway: Single, or privateCluster: {enabled: true, additionalEndpointServices: [autoscaling]}",
        )


LINTS = (Lint("L23", "private clusters without a way to the APIs of AWS", find_unreachable_apis),)
