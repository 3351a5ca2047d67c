"""Names of containers are read from the links that the kubelet creates for log collectors."""

from pathlib import Path

import pytest

from gpuscaler.exporter.attribution.names import ContainerNames
from gpuscaler.exporter.parts import Owner

UID = "0f8e1a52-3b61-4b0c-9a4e-6e2d5c1b7a90"
ID = "ab" * 32


def link(folder: Path, name: str, target: str) -> Path:
    made = folder / name
    made.symlink_to(target)
    return made


def read_names(folder: Path) -> ContainerNames:
    names = ContainerNames(folder)
    names.refresh()
    return names


def test_a_container_log_link_gives_namespace_pod_container_uid_and_id(tmp_path: Path) -> None:
    link(tmp_path, f"train-0_ml_main-{ID}.log", f"/var/log/pods/ml_train-0_{UID}/main/3.log")
    names = read_names(tmp_path)
    assert names.container(ID) == Owner("ml", "train-0", "main", UID)
    assert names.pod(UID) == ("ml", "train-0")
    assert list(names.uids("ml", "train-0")) == [UID]


def test_a_container_log_link_with_a_truncated_name_still_gives_the_pod(tmp_path: Path) -> None:
    pod, container = "p" * 190, "c" * 60
    link(tmp_path, f"{pod}_ml_{container}-{ID}"[:251] + ".log", f"/data/logs/ml_{pod}_{UID}/{container}/0.log")
    names = read_names(tmp_path)
    assert names.container(ID) is None
    assert names.pod(UID) == ("ml", pod)


@pytest.mark.parametrize(
    ("name", "target"),
    [(f"a_ml_c-{ID}.log", "/somewhere/else.log"), ("notes.txt", "/var/log/pods/x"), (f"a_ml_c-{ID}.log", f"/var/log/pods/{UID}/c/0.log")],
)
def test_links_other_than_container_logs_are_skipped(tmp_path: Path, name: str, target: str) -> None:
    link(tmp_path, name, target)
    (tmp_path / f"file-{ID}.log").write_text("no link")
    names = read_names(tmp_path)
    assert names.container(ID) is None
    assert names.pod(UID) is None


def test_new_and_removed_container_log_links_are_noticed_at_the_next_read(tmp_path: Path) -> None:
    names = read_names(tmp_path)
    made = link(tmp_path, f"train-0_ml_main-{ID}.log", f"/var/log/pods/ml_train-0_{UID}/main/0.log")
    names.refresh()
    assert names.pod(UID) == ("ml", "train-0")
    made.unlink()
    names.refresh()
    assert names.pod(UID) is None
    assert not list(names.uids("ml", "train-0"))


def test_no_container_names_are_known_if_the_log_folder_is_not_mounted(tmp_path: Path) -> None:
    assert read_names(tmp_path / "absent").pod(UID) is None
