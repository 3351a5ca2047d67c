"""Images of machines that are not made any more."""

import re
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.groups.groups import Group, groups_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifests

#: Sources, read in November 2026: AWS's page "Amazon EKS optimized Amazon Linux 2 AMIs" (none from Kubernetes 1.33 on, and none at all
#: since 2025-11-26), and kOps' page "Images" (those of kope.io ended with Debian 9).
_REFUSED = Mistake("L9", CRITICAL, "eksctl refuses the file: AWS makes no such images")
_OLD = Mistake("L9", WARNING, "machines get no corrections any more, and the images do not exist for later releases")
_WITHOUT_AL2 = (1, 33)
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,3})(\.\d+)?")


def find_former_images(manifests: Manifests) -> Iterable[Finding]:
    """L9: Amazon Linux 2 on EKS, and the images that kOps made itself."""
    for group in groups_of(manifests):
        if group.maker == "kops":
            yield from _of_kops(group)
        elif group.maker in ("eksctl", "managed"):
            yield from _of_eksctl(group)
    for manifest in manifests.of("EC2NodeClass"):
        path = ("spec", "amiFamily")
        if manifest.document.text(*path) == "AL2":
            advice = "write AL2023, with alias: al2023@… in amiSelectorTerms, and with userData that fits it"
            yield _OLD.at(manifest, path, seen="AL2, whose last image is of November 2025", expected="AL2023", advice=advice)


def _of_eksctl(group: Group) -> Iterator[Finding]:
    version = _VERSION.fullmatch(str(group.manifest.document.value("metadata", "version")))
    if version is None or (int(version[1]), int(version[2])) < _WITHOUT_AL2 or group.document.text("amiFamily") != "AmazonLinux2":
        return
    path, seen = (*group.path, "amiFamily"), f"AmazonLinux2 with Kubernetes {version[0]}"
    new = changed(group.manifest.data, path, "AmazonLinux2023")
    yield _REFUSED.at(group.manifest, path, seen=seen, expected="AmazonLinux2023", new=new)


def _of_kops(group: Group) -> Iterator[Finding]:
    path = (*group.path, "image")
    image = group.document.text("image")
    if image.startswith("kope.io/"):
        new, expected = removed(group.manifest.data, path), "no image: kOps then takes one that fits the release"
        yield _OLD.at(group.manifest, path, seen=image, expected=expected, new=new, advice="remove it")


LINTS = (Lint("L9", "images of machines that are out of date", find_former_images),)
