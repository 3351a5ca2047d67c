"""The recorded cases in ``../shared/cases`` in which running pods were moved into capacity promised to others."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuscaler.cli import main

CASES = Path(__file__).parents[3] / "shared" / "cases"


def answer(*words: str, code: int = 0) -> Any:
    """Return the JSON output of a command. Each file after ``CASES/`` must exist."""
    for word in words:
        if word.startswith(str(CASES)) and not Path(word).exists():
            pytest.skip(f"../shared/cases/{Path(word).name} is not there")
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_no_replica_is_moved_to_capacity_promised_to_a_nominated_pod() -> None:
    document = answer("plan", "--cluster", str(CASES / "nominated-cluster.yaml"), "--pools", str(CASES / "nominated-pools.yaml"))

    assert document["removals"] == []
    assert document["ignored"] == [{"pod": "serving/web-2", "reason": "nominated to node node-b"}]


def test_a_recorded_plan_that_evicted_four_of_ten_replicas_of_a_growing_deployment_now_evicts_none() -> None:
    """A hundred nodes, 30 of them with nominated pods: the recorded decision removed seven nodes."""
    document = answer("replay", "--inputs", str(CASES / "evicts-for-nominated.inputs"), code=1)

    assert document["removals"] == []
    assert document["machines"] == []
