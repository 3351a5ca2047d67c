"""The manifest for those who install without helm."""

import pytest
from tests.charts.manifest import FILE, manifest

pytestmark = pytest.mark.charts


def test_the_manifest_is_what_the_chart_makes_today() -> None:
    assert FILE.read_text() == manifest(), "run `make manifest`"
