"""Messages if the requested real control plane is not available."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli.cluster import cluster
from gpuscaler.cli.demo import demo


def run_cluster(tmp_path: Path, *options: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner(env=environ or {}).invoke(cluster, ["--kubeconfig", str(tmp_path / "kubeconfig"), *options])


def test_a_kubernetes_release_can_be_chosen_only_for_a_real_control_plane(tmp_path: Path) -> None:
    result = run_cluster(tmp_path, "--kubernetes", "1.33.13")

    assert result.exit_code == 2
    assert "without --control-plane real" in result.output


def test_a_real_control_plane_uses_the_clock_of_this_machine(tmp_path: Path) -> None:
    result = run_cluster(tmp_path, "--control-plane", "real", "--speed", "10")

    assert result.exit_code == 2
    assert "this machine's clock" in result.output
    shown = CliRunner().invoke(demo, ["--control-plane", "real", "--speed", "10", "--out", str(tmp_path / "out")])
    assert shown.exit_code == 2
    assert "this machine's clock" in shown.output


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        (("--kubernetes", "1.33"), {"KUBEBUILDER_ASSETS": ""}, "Kubernetes 1.33: saw no release"),
        ((), {"KUBEBUILDER_ASSETS": "/nowhere"}, "KUBEBUILDER_ASSETS=/nowhere: saw no etcd"),
    ],
)
def test_unavailable_programs_end_the_command_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], environ: dict[str, str], message: str
) -> None:
    result = run_cluster(tmp_path, "--control-plane", "real", *options, environ=environ)

    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "kubeconfig").exists()
