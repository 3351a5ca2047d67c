"""The lock files: complete, hashed, and without an address, so that any index serves them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
LOCKS = ("core.txt", "runtime.txt", "dev.txt", "build.txt", "release.txt", "go.txt", *(f"{extra}.txt" for extra in EXTRAS))
#: The lock file of the program itself, and the sources that it is for.
GO_FOLDER = ROOT / "src" / "gpuscaler" / "embedded" / "controlplane"


def text(lock: str) -> str:
    return ((GO_FOLDER if lock == "go.txt" else ROOT / "requirements") / lock).read_text()


def pins(lock: str) -> dict[str, list[tuple[Requirement, list[str]]]]:
    """Return the pinned requirements of a lock file by name, with their hashes."""
    requirements: dict[str, list[tuple[Requirement, list[str]]]] = {}
    logical = re.sub(r"#.*", "", text(lock)).replace("\\\n", " ")
    for line in filter(str.strip, logical.splitlines()):
        requirement, *hashes = line.split("--hash=")
        parsed = Requirement(requirement.strip())
        requirements.setdefault(canonicalize_name(parsed.name), []).append((parsed, [digest.strip() for digest in hashes]))
    return requirements


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def core_requirements() -> list[str]:
    return list(pyproject()["project"]["dependencies"])


def runtime_requirements() -> list[str]:
    return core_requirements() + [line for extra in pyproject()["project"]["optional-dependencies"].values() for line in extra]


def development_requirements() -> list[str]:
    groups = pyproject()["dependency-groups"]
    return [line for name in ("test", "lint", "build", "dev") for line in groups[name] if isinstance(line, str)]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_contain_no_urls_or_paths(lock: str) -> None:
    assert not re.search(r"https?:|://|--(extra-)?index|--find-links|file:| @ ", text(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_to_one_version_with_sha256_hashes(lock: str) -> None:
    wrong = [
        str(requirement)
        for pinned in pins(lock).values()
        for requirement, hashes in pinned
        if not re.fullmatch(r"==[^*,]+", str(requirement.specifier))
        or not hashes
        or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("core.txt", core_requirements()),
        ("runtime.txt", runtime_requirements()),
        ("dev.txt", runtime_requirements() + development_requirements()),
        ("build.txt", pyproject()["dependency-groups"]["build"]),
        ("release.txt", pyproject()["dependency-groups"]["release"]),
        ("go.txt", pyproject()["dependency-groups"]["conformance"]),
        *((f"{extra}.txt", core_requirements() + pyproject()["project"]["optional-dependencies"][extra]) for extra in EXTRAS),
    ],
)
def test_a_lock_file_satisfies_the_projects_requirements(lock: str, wanted: list[str]) -> None:
    locked = pins(lock)
    missing = []
    for line in wanted:
        requirement = Requirement(line)
        versions = [pin.specifier for pin, _ in locked.get(canonicalize_name(requirement.name), [])]
        if not versions or not all(requirement.specifier.contains(str(version).removeprefix("==")) for version in versions):
            missing.append(line)

    assert missing == []


@pytest.mark.parametrize("lock", ["core.txt", "runtime.txt", "build.txt", *(f"{extra}.txt" for extra in EXTRAS)])
def test_the_developers_lock_file_has_the_same_versions_as_the_users_one(lock: str) -> None:
    # A package that users need only on some platforms may be needed everywhere here, so versions are compared and markers are not.
    users, developers = (
        {name: sorted({str(requirement.specifier) for requirement, _ in pinned}) for name, pinned in pins(file).items()}
        for file in (lock, "dev.txt")
    )

    different = [name for name in users if users[name] != developers[name]]

    assert different == []


def test_the_core_depends_on_no_cloud_or_gpu_library() -> None:
    assert [name for name in pins("core.txt") if name.startswith(("boto", "grpc", "nvidia", "protobuf"))] == []
