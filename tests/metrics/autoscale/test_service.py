"""The setting that enables autoscaling by annotations."""

from pathlib import Path

import pytest

from gpuscaler.metrics.command.settings import parse
from gpuscaler.model.reading.errors import SettingsError

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "metrics-settings.yaml"


def test_autoscalers_are_created_only_if_the_setting_is_enabled() -> None:
    assert not parse("").autoscale
    assert not parse("autoscale: false").autoscale
    assert parse("autoscale: true").autoscale
    with pytest.raises(SettingsError, match="autoscale"):
        parse("autoscale: maybe")


def test_the_settings_in_the_documentation_are_valid() -> None:
    assert parse(EXAMPLE.read_text()).autoscale
