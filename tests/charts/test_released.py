"""The chart as `make release` packs it, read by the real helm."""

import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from tests.charts.rendering import CHART, ROOT, SMALL, built, call
from tools.release.chart import pack_chart
from tools.release.source import Source

import gpuscaler

DIGEST = f"sha256:{'1a' * 32}"

pytestmark = pytest.mark.charts


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    source = Source(folder=ROOT, version=gpuscaler.__version__, commit="0" * 40, epoch=1_800_000_000, notes="")
    return pack_chart(source, tmp_path, image="example.com/gpu/scaler", digest=DIGEST)


def test_the_released_chart_installs_the_image_by_its_digest(packed: Path) -> None:
    done = call("template", "gpuscaler", str(packed), values=SMALL)

    assert done.returncode == 0, done.stderr
    deployments = [obj for obj in yaml.safe_load_all(done.stdout) if obj and obj["kind"] == "Deployment"]
    assert [deployment["spec"]["template"]["spec"]["containers"][0]["image"] for deployment in deployments] == [
        f"example.com/gpu/scaler@{DIGEST}"
    ]


def test_the_chart_archive_contains_the_files_that_helm_would_pack(packed: Path, tmp_path: Path) -> None:
    into = tmp_path / "helm"
    subprocess.run((built(), "package", CHART, "--destination", into), check=True, capture_output=True, env={"HOME": str(tmp_path)})
    (by_helm,) = into.glob("*.tgz")

    with tarfile.open(packed) as ours, tarfile.open(by_helm) as theirs:
        assert sorted(ours.getnames()) == sorted(theirs.getnames())
        assert {tar_info.mode for tar_info in ours} == {tar_info.mode for tar_info in theirs}
    assert by_helm.name == packed.name
