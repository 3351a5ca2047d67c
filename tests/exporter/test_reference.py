"""The reference page of the exporter lists all metrics, and only those."""

import re
from pathlib import Path

from tests.exporter.child import measuring
from tests.exporter.fake_nvml import FakeNvml

from gpuscaler.exporter import fields
from gpuscaler.exporter.fields import FIELDS, WINDOWS
from gpuscaler.exporter.xids import RECOVERY_ACTIONS, catalogue

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "exporter.md").read_text()
NAMED = set(re.findall(r"`((?:nvidia|gpuscaler)_(?:gpu|exporter)_\w*\w)`", PAGE))
WINDOWED = {f"{field.windowed}_{statistic}" for field in FIELDS.values() if field.windowed for statistic in ("max", "mean")}


def test_the_reference_page_lists_every_field_with_its_driver_call_and_labels() -> None:
    for field in FIELDS.values():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{field.metric}` |"))
        assert all(f"`{label}`" in row for label in field.labels)
        assert field.call.split(" ")[0].rstrip(";") in row
        assert row.endswith(f"| {field.absent} |")


def test_the_reference_page_names_the_dcgm_counterpart_of_each_main_metric() -> None:
    section = PAGE.partition("## Coming from dcgm-exporter")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(nvidia_gpu_\w+)` \| `DCGM_FI_", section, re.MULTILINE)) == {
        field.metric for field in FIELDS.values() if field.metric.startswith("nvidia_gpu_")
    }


def test_the_reference_page_lists_every_window() -> None:
    assert WINDOWED <= NAMED
    assert all(f"`{seconds}s`" in PAGE for seconds in WINDOWS)


def test_the_reference_page_lists_exactly_the_other_metrics_of_the_source() -> None:
    source = Path(fields.__file__).parent
    written = {
        name for path in source.rglob("*.py") for name in re.findall(r"\b((?:nvidia|gpuscaler)_(?:gpu|exporter)_\w*\w)\b", path.read_text())
    }
    own = {f"gpuscaler_exporter_{name}" for name in re.findall(r'\("(\w+)", "(?:counter|gauge)"', (source / "service.py").read_text())}
    own |= {f"gpuscaler_exporter_{name}" for name in ("cpu_seconds_total", "resident_memory_bytes")}

    assert (written | own) - NAMED - {name.rpartition("_")[0] for name in WINDOWED} == set()
    assert NAMED - (written | own | WINDOWED) == set()


def test_the_example_alerts_use_existing_metrics() -> None:
    rules = (Path(__file__).parents[2] / "docs" / "examples" / "gpu-alerts.yaml").read_text()
    asked = set(re.findall(r"\b(?:nvidia|gpuscaler)_(?:gpu|exporter)_\w+", rules))

    assert asked
    assert asked - NAMED == set()


def test_the_reference_page_has_the_whole_xid_catalogue_and_its_date() -> None:
    codes: dict[str, list[int]] = {}
    for code, xid in catalogue().errors.items():
        codes.setdefault(xid.action, []).append(code)
    for action, several in codes.items():
        assert re.search(rf"^\| `{action}` \| .* \| {', '.join(map(str, several))} \|$", PAGE, re.MULTILINE), action
    assert f"catalogue of {catalogue().date}" in PAGE
    assert all(f"`{action}`" in PAGE for action in RECOVERY_ACTIONS)


def test_a_backend_reports_only_known_fields(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        device = child.devices().devices[0].uuid
        values = child.reading(device, lambda reading: "sm_active_ratio" in reading.values).values

    for key in values:
        name, *labels = key.split(":")
        assert len(labels) == len(FIELDS[name].labels)
