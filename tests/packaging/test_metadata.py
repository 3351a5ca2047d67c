"""Metadata and content of a built wheel."""

import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import gpuscaler

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpuscaler"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"gpuscaler-{gpuscaler.__version__}.dist-info/METADATA").decode())


def test_the_wheel_contains_all_files_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}

    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == files


def test_the_wheel_contains_the_typing_marker(wheel: zipfile.ZipFile) -> None:
    assert "gpuscaler/py.typed" in wheel.namelist()


def test_the_wheel_has_the_version_of_the_package(metadata: Message) -> None:
    assert metadata["Version"] == gpuscaler.__version__


def test_the_wheel_contains_the_licence(wheel: zipfile.ZipFile, metadata: Message) -> None:
    (licence,) = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]

    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in wheel.read(licence).decode()


def test_cloud_and_gpu_libraries_are_installed_only_with_their_extra(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist") or []
    optional = ("boto3", "nvidia-", "grpcio", "protobuf")

    assert set(metadata.get_all("Provides-Extra") or []) == {"aws", "exporter"}
    assert [line for line in required if line.startswith(optional) and "extra ==" not in line] == []


def test_the_wheel_installs_the_gpuscaler_command(wheel: zipfile.ZipFile) -> None:
    entry_points = wheel.read(f"gpuscaler-{gpuscaler.__version__}.dist-info/entry_points.txt").decode()

    assert "gpuscaler = gpuscaler.cli:run" in entry_points
