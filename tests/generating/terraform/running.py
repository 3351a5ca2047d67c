"""Runs Terraform's own program on generated files, with a stand-in for the provider."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.generating.terraform.stand_in import Answers, Table, standing_in

from gpuscaler.generating.writing.files import GeneratedFile

TERRAFORM = shutil.which("terraform")
#: Marks tests that run Terraform. It is not among the tools that the tests bring themselves.
needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="terraform is not installed")


class TerraformError(AssertionError):
    """What Terraform said about the files."""


def written(folder: Path, files: Iterable[GeneratedFile], *, explain: bool = False) -> Path:
    """Write the files of Terraform into a folder, and return the one that Terraform runs in."""
    for file in files:
        if file.path.endswith(".tf"):
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text(explain=explain))
    return folder / "terraform"


def terraform(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what Terraform prints. Raises :class:`TerraformError` if it reports an error."""
    plain = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_CONFIG_FILE": os.devnull, "NO_COLOR": "1"}
    command = [TERRAFORM or "terraform", f"-chdir={folder}", *arguments]
    result = subprocess.run(command, env={**os.environ, **plain, **(environment or {})}, capture_output=True, text=True, check=False)
    if result.returncode:
        raise TerraformError(f"{' '.join(arguments)}:\n{result.stdout}{result.stderr}")
    return result.stdout


def validate(folder: Path, table: Table) -> None:
    with standing_in(table, lambda _kind, _config: {}) as environment:
        terraform(folder, "init", "-no-color", environment=environment)
        terraform(folder, "validate", "-no-color", environment=environment)


def plan(folder: Path, table: Table, variables: Mapping[str, Any], answers: Answers, *, examples: bool = False) -> dict[str, Any]:
    """Return what Terraform would ask the provider for, by the addresses of resources; without ``examples``, as far as it is known."""
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables))
    with standing_in(table, answers, examples=examples) as environment:
        terraform(folder, "init", "-no-color", environment=environment)
        terraform(folder, "plan", "-no-color", "-out=plan.tfplan", environment=environment)
        shown = json.loads(terraform(folder, "show", "-json", "plan.tfplan", environment=environment))
    return {resource["address"]: resource["values"] for resource in shown["planned_values"]["root_module"].get("resources", [])}
