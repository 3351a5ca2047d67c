"""The manifest for installation without helm."""

import pytest
from tests.charts.manifest import FILE, manifest

pytestmark = pytest.mark.charts


def test_the_manifest_equals_the_rendered_chart() -> None:
    assert FILE.read_text() == manifest(), "run `make manifest`"
