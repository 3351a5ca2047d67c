"""The workflows of the forge: pinned actions, minimal permissions per job, and existing targets."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PUBLISHING = re.compile(r"gh release|docker://|pypi-publish|skopeo login")

Job = dict[str, Any]


def read(path: Path) -> dict[Any, Any]:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text())
    return workflow


def jobs(path: Path) -> dict[str, Job]:
    result: dict[str, Job] = read(path)["jobs"]
    return result


def steps() -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield from ((path.name, name, step) for path in WORKFLOWS for name, job in jobs(path).items() for step in job["steps"])


RELEASE = jobs(ROOT / ".github" / "workflows" / "release.yml")


def test_every_action_is_pinned_to_a_commit_with_its_version_in_a_comment() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    used = re.findall(r"uses: (.*)", text)

    assert len(used) > 5
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_an_action_is_pinned_to_the_same_commit_in_all_workflows() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)

    bound = set(re.findall(r"uses: (\S+)@(\S+)", text))
    assert len(bound) == len({action for action, _ in bound})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_jobs_have_only_the_permissions_that_they_declare(path: Path) -> None:
    assert read(path)["permissions"] == {}
    assert [name for name, job in jobs(path).items() if "permissions" not in job or "timeout-minutes" not in job] == []


def test_jobs_that_run_the_repository_s_code_may_neither_sign_nor_write() -> None:
    building = [
        job for path in WORKFLOWS for job in jobs(path).values() if any("checkout" in str(step.get("uses")) for step in job["steps"])
    ]

    assert building
    assert [job["permissions"] for job in building if job["permissions"] != {"contents": "read"}] == []
    checkouts = [step for _, _, step in steps() if "checkout" in str(step.get("uses"))]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_signed_artifacts_are_published_and_only_if_the_repository_enables_it() -> None:
    publishing = {name for name, job in RELEASE.items() if PUBLISHING.search(str(job["steps"]))}

    def before(name: str) -> set[str]:
        needs = RELEASE[name].get("needs")
        return {needs} | before(needs) if needs else set()

    assert {name for name in RELEASE if name.startswith("publish")} == publishing
    for name in publishing:
        chain = {name} | before(name)
        assert {"build", "sign"} < chain
        assert any(RELEASE[job].get("if") == "vars.PUBLISH == 'true'" for job in chain)
        assert RELEASE[name]["environment"] == "release"
        assert "sha256sum --check --strict SHA256SUMS" in str(RELEASE[name]["steps"])


def test_workflows_call_make_with_existing_targets_and_variables() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    called = [line for _, _, step in steps() for line in step.get("run", "").splitlines() if line.startswith("make ")]

    assert {"make audit"} < set(called)
    assert {line.split()[1] for line in called} <= targets
    assert {name for line in called for name in re.findall(r"\b([A-Z]+)=", line)} <= variables


def test_no_untrusted_text_is_inserted_into_a_workflow_script() -> None:
    assert [(file, job) for file, job, step in steps() if "${{" in step.get("run", "")] == []


def test_every_push_of_a_version_tag_starts_a_release_build() -> None:
    # YAML 1.1 reads the key `on` as true.
    assert read(ROOT / ".github" / "workflows" / "release.yml")[True] == {"push": {"tags": ["v*"]}}
