"""``gpuscaler plan --proof`` and ``gpuscaler check-proof``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli import main

POD = """
apiVersion: v1
kind: Pod
metadata: {{name: train-{number}, namespace: ml}}
spec:
  containers:
  - name: main
    resources: {{requests: {{cpu: "{cpu}", memory: 13Gi}}, limits: {{nvidia.com/gpu: {gpus}}}}}
"""
POOLS = "region: us-east-1\npools:\n- {name: gpu, types: [g5.xlarge, g5.2xlarge, g5.12xlarge], zones: [us-east-1a]}\n"


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """A proof for a plan with several shapes of pods."""
    pods = [POD.format(number=number, cpu=2 + number % 3, gpus=1 + number % 2) for number in range(7)]
    (tmp_path / "cluster.yaml").write_text("---".join(pods))
    (tmp_path / "pools.yaml").write_text(POOLS)
    path = tmp_path / "proof.json"
    arguments = ["plan", "--cluster", str(tmp_path / "cluster.yaml"), "--pools", str(tmp_path / "pools.yaml"), "--proof", str(path)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return path


def check(path: Path) -> Result:
    return CliRunner().invoke(main, ["check-proof", str(path)])


def test_the_written_proof_proves_the_bound_of_a_plan(proof: Path) -> None:
    result = check(proof)
    assert result.exit_code == 0
    assert "holds: none of the 3 kinds" in result.output


def test_check_proof_rejects_dual_values_that_prove_too_high_a_bound(proof: Path) -> None:
    solved = json.loads(proof.read_text())
    solved["solution"]["duals"]["items"] = [2 * value for value in solved["solution"]["duals"]["items"]]
    solved["solution"]["lower_bound"] *= 2
    proof.write_text(json.dumps(solved))
    result = check(proof)
    assert result.exit_code == 1
    assert "does NOT hold" in result.output


def test_check_proof_rejects_a_file_that_is_not_a_proof(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"problem": 3}')
    result = check(path)
    assert result.exit_code == 2
    assert "gpuscaler plan --proof" in result.output
