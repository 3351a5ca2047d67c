"""Generated files, applied to a simulated AWS account: gpuscaler finds what was described, runs pods from zero, and goes back to zero."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.control.aws_stage import Stage, aws_stage
from tests.generating.applying.aws import AwsDriver
from tests.generating.corpus import FOLDER

from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

NAMES = ("s0-kops", "s1-eksctl", "s1-self-managed", "s3-metrics")


def described(name: str, account: str) -> Description:
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    text["cluster"]["account"] = account
    return read_description(yaml.safe_dump(text), name)


def apply(here: Stage, description: Description) -> AwsDriver:
    """Apply the files of the cloud in their order."""
    driver = AwsDriver(here, description.cluster.name)
    for file in files_of(description):
        text = file.text(explain=False)
        if file.path.startswith("cloudformation/"):
            driver.cloudformation(text)
        elif file.path == "kops/instancegroups.yaml":
            driver.kops(text)
        elif file.path in {"eksctl/cluster.yaml", "eksctl/nodegroups.yaml"}:
            driver.eksctl(text)
            driver.protect_new_machines()
    return driver
