"""ClusterConfigs, judged by eksctl's own JSON schema."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from tests.generating.corpus import NAMES, generated
from tests.generating.eksctl_module import schema

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema())


def _configs() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in NAMES:
        for path, file in generated(name).items():
            if path.startswith("eksctl/"):
                yield f"{name} {path}", yaml.safe_load(file.text(explain=False))


def test_files_fit_the_schema(validator: jsonschema.Draft7Validator) -> None:
    configs = dict(_configs())
    assert len(configs) >= 5
    wrong = {name: [error.message for error in validator.iter_errors(config)] for name, config in configs.items()}
    assert {name: errors for name, errors in wrong.items() if errors} == {}


def test_the_schema_refuses_a_misspelt_field(validator: jsonschema.Draft7Validator) -> None:
    name, config = next(_configs())
    config["managedNodeGroups"][0]["availabilityZone"] = "us-west-2a"
    assert "availabilityZone" in str([error.message for error in validator.iter_errors(config)]), name
