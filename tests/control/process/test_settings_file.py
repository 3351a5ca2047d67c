"""Changes of the run file while the controller runs, made in every way in which files change."""

import asyncio
import os
from pathlib import Path

import pytest

from gpuscaler.control.process.settings_file import SettingsFile, changed_keys, restart_keys
from gpuscaler.settings import SettingsError
from gpuscaler.settings.run_settings import RunSettings

GOOD = "region: us-east-1\ncloud: simulated\npools: [{name: a, types: [g5.xlarge]}]\n"
OTHER = f"{GOOD}log: {{level: debug}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "run.yaml"
    made.write_text(GOOD)
    return made


def test_a_run_file_that_is_invalid_at_startup_is_an_error(path: Path) -> None:
    path.write_text("pools: [")

    with pytest.raises(SettingsError, match="not YAML"):
        SettingsFile(path)


def test_changed_content_of_the_run_file_is_returned_as_new_settings_once(path: Path) -> None:
    file = SettingsFile(path)
    before = file.settings
    path.write_text(OTHER)

    assert (file.poll(), file.poll()) == (True, False)
    assert changed_keys(before, file.settings) == ("log",)


def test_a_changed_run_file_with_the_same_size_and_modification_time_is_detected(path: Path) -> None:
    file = SettingsFile(path)
    times = path.stat()
    path.write_text(GOOD.replace("name: a", "name: b"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert file.poll()
    assert file.settings.policy.pools[0].name == "b"


def test_a_run_file_replaced_through_the_symbolic_link_of_a_config_map_volume_is_detected(tmp_path: Path) -> None:
    """As a kubelet does it: run.yaml -> ..data/run.yaml, ..data -> the current folder."""
    for name, text in (("one", GOOD), ("two", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "run.yaml").symlink_to("..data/run.yaml")
    file = SettingsFile(tmp_path / "run.yaml")
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")

    assert file.poll()
    assert file.settings.log.level == "debug"


def test_a_reformatted_run_file_with_the_same_settings_changes_nothing(path: Path) -> None:
    file = SettingsFile(path)
    path.write_text(f"# a comment\n{GOOD}")

    assert not file.poll()


@pytest.mark.parametrize("text", ["pools: [", f"{GOOD}nonsense: 1\n", None])
def test_an_invalid_or_missing_run_file_keeps_the_settings_and_is_reported_until_repaired(path: Path, text: str | None) -> None:
    file = SettingsFile(path)
    before = file.settings
    if text is None:
        path.unlink()
    else:
        path.write_text(text)

    assert not file.poll()
    assert file.trouble.startswith(str(path))
    assert file.settings == before
    path.write_text(GOOD)
    assert not file.poll()
    assert file.trouble == ""


async def test_each_change_of_settings_is_reported_once_with_the_previous_settings(path: Path) -> None:
    file = SettingsFile(path)
    reports: list[object] = []

    def changed(before: RunSettings, now: RunSettings) -> None:
        reports.append((before.log.level, now.log.level))

    following = asyncio.create_task(file.follow(changed, reports.append))
    for text in (OTHER, "pools: [", "pools: 5", GOOD):
        write(path, text)
        await asyncio.sleep(20)
    following.cancel()

    assert [reports[0], reports[3]] == [("info", "debug"), ("debug", "info")]
    assert ["not YAML" in str(reports[1]), "expected a list" in str(reports[2]), len(reports)] == [True, True, 4]


async def test_restoring_a_valid_run_file_is_reported_as_resolved(path: Path) -> None:
    reports: list[str] = []
    following = asyncio.create_task(SettingsFile(path).follow(lambda _before, _now: reports.append("changed"), reports.append))
    for text in ("pools: 5", GOOD):
        write(path, text)
        await asyncio.sleep(20)
    following.cancel()

    assert ["expected a list" in reports[0], *reports[1:]] == [True, ""]


def write(path: Path, text: str) -> None:
    path.write_text(text)


def test_changed_settings_of_discovered_pools_take_effect_at_once_and_changed_regions_after_a_restart(path: Path) -> None:
    aws = "cloud: aws\naws: {cluster: a, regions: [us-east-1]}\n"
    path.write_text(aws)
    file = SettingsFile(path)
    before = file.settings
    path.write_text(f"{aws}pools: [{{name: gpu, max: 3}}]\nlimits: {{gpus: 8}}\n")
    file.poll()

    assert (changed_keys(before, file.settings), restart_keys(before, file.settings)) == (("policy", "aws"), ())

    path.write_text(aws.replace("cluster: a", "cluster: b"))
    file.poll()
    assert restart_keys(before, file.settings) == ("aws",)


@pytest.mark.parametrize(
    ("cloud", "mapping"),
    [
        ("aws", "aws: {regions: [us-east-1]}"),
        ("azure", "azure: {subscriptions: [{id: aaaaaaaa-0000-0000-0000-000000000000, resource_groups: [nodes]}]}"),
    ],
)
def test_settings_of_pools_from_an_account_take_effect_at_once_and_the_account_after_a_restart(
    path: Path, cloud: str, mapping: str
) -> None:
    text = f"cloud: {cloud}\n{mapping}\npools: [{{name: a, max: 3}}]\n"
    path.write_text(text)
    file = SettingsFile(path)
    before = file.settings
    path.write_text(text.replace("max: 3", "max: 4"))

    assert file.poll()
    assert restart_keys(before, file.settings) == ()
    path.write_text(text.replace("regions: [us-east-1]", "regions: [us-east-2]").replace("groups: [nodes]", "groups: [others]"))
    assert file.poll()
    assert restart_keys(before, file.settings) == (cloud,)


def test_another_cloud_takes_effect_after_a_restart(path: Path) -> None:
    path.write_text("cloud: aws\naws: {regions: [us-east-1]}\npools: [{name: a}]\n")
    file = SettingsFile(path)
    before = file.settings
    path.write_text(GOOD)

    assert file.poll()
    assert {"cloud", "aws"} <= set(restart_keys(before, file.settings))
