"""`make release`: the artifacts for a small repository, rejected commits, and identical bytes for the same commit."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from tests.lacking import skip_or_fail

ROOT = Path(__file__).parents[2]
VERSION = "0.1.0"
SHIPPED = ("LICENSE", "README.md", "pyproject.toml", "requirements/base-image.txt", "src/gpuscaler/__init__.py", "deploy/gpuscaler.yaml")
CHANGELOG = """# Changelog

## [Unreleased]

- Not said yet.

## [0.1.0] - 2026-11-30

- It is there.

## [0.0.9] - 2026-10-01

- Older.
"""
#: A buildah that builds nothing: it pushes the layout next to it.
BUILDAH = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >>"$here/asked"
case "$1" in
--version) echo "buildah version 9" ;;
push) layout=${5#oci:}; mkdir -p "$layout"; cp -R "$here/layout/." "${layout%:*}/" ;;
esac
"""
#: A cyclonedx-py that finds the packages in the interpreter's folders.
CYCLONEDX = """#!/usr/bin/env python3
import json, os, subprocess, sys
folders = json.loads(subprocess.run([sys.argv[-1]], capture_output=True, check=True).stdout)
names = sorted(name.removesuffix(".dist-info") for folder in folders for name in os.listdir(folder))
component = {"name": "gpuscaler", "type": "application"}
print(json.dumps({"metadata": {"component": component}, "components": [{"name": name} for name in names]}))
"""
#: A uv that creates environments with the packages of a folder.
UV = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
[ "$2" = venv ] || exit 0
for last; do :; done
mkdir -p "$last/bin"
printf '#!/bin/sh\\necho %s' "'[\\"{site}\\"]'" >"$last/bin/python"
chmod +x "$last/bin/python"
"""
#: Status file of Debian's package manager: an installed and a removed package.
STATUS = """Package: zlib1g
Status: install ok installed
Architecture: amd64
Source: zlib (1:1.2)
Version: 1:1.2+b1

Package: gone
Status: deinstall ok config-files
Version: 1
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small clone that can be released: its last commit has the tag, and its changelog the section."""
    folder = tmp_path / "repository"
    for name in SHIPPED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "charts", folder / "charts")
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / ".gitignore").write_text("build/\n*.key\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> str:
    person = {f"GIT_{who}_{what}": "someone@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), **person, "GIT_COMMITTER_DATE": "2025-11-30T12:00:00Z"}
    return subprocess.run(("git", *words), cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, tag: str = f"v{VERSION}") -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")
    git(folder, "tag", "--force", tag)


def release(folder: Path, *words: str | Path, umask: int = 0o022, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the program of ``make release``."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **more}
    command = (sys.executable, "-m", "tools.release", *words)
    return subprocess.run(command, cwd=folder, env=environ, umask=umask, check=False, capture_output=True, text=True)


def built(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "build" / "release").iterdir()}


def values(archive: Path) -> Mapping[str, Mapping[str, str]]:
    with tarfile.open(archive) as tar:
        file = tar.extractfile("gpuscaler/values.yaml")
        assert file
        content: Mapping[str, Mapping[str, str]] = yaml.safe_load(file)
    return content


def test_builds_of_the_same_commit_are_identical_on_every_machine(repository: Path, tmp_path: Path) -> None:
    parts = ("wheel", "sdist", "chart", "manifest")
    first = release(repository, "--sign", "none", *parts)
    elsewhere = tmp_path / "some" / "where else"
    elsewhere.parent.mkdir()
    git(tmp_path, "clone", "--quiet", str(repository), str(elsewhere))
    second = release(elsewhere, "--sign", "none", *parts, umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1")

    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stderr) == (0, "")
    assert built(repository) == built(elsewhere)
    assert {
        f"gpuscaler-{VERSION}-py3-none-any.whl",
        f"gpuscaler-{VERSION}.tar.gz",
        f"gpuscaler-{VERSION}.tgz",
        f"gpuscaler-{VERSION}.yaml",
    } < set(built(repository))


def test_uncommitted_files_are_in_no_release(repository: Path) -> None:
    (repository / "src" / "gpuscaler" / "secret.key").write_text("ignored")

    assert release(repository, "--sign", "none", "sdist", "chart").returncode == 0
    with tarfile.open(repository / "build" / "release" / f"gpuscaler-{VERSION}.tar.gz") as tar:
        names = tar.getnames()
    assert f"gpuscaler-{VERSION}/src/gpuscaler/__init__.py" in names
    assert [name for name in names if "secret" in name] == []


def test_checksums_cover_every_file_and_release_notes_are_the_changelog_section_of_the_version(repository: Path) -> None:
    assert release(repository, "--sign", "none", "chart", "manifest").returncode == 0

    files = built(repository)
    sums = files.pop("SHA256SUMS").decode()
    assert sums == "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    assert files[f"gpuscaler-{VERSION}.notes.md"] == b"- It is there.\n"


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        ("", ("--tag", "v0.2.0"), "the tag v0.2.0 was pushed, but version 0.1.0 needs v0.1.0"),
        ("", ("--version", "0.2.0"), "VERSION=0.2.0 was requested, but src/gpuscaler/__init__.py says 0.1.0"),
        ("", ("--sign", ""), "a release must be signed: expected SIGN=keyless"),
        ("new.py", (), "the working tree has uncommitted changes: new.py; commit or remove them"),
        ("README.md", (), "the working tree has uncommitted changes: README.md; commit or remove them"),
    ],
)
def test_a_commit_that_is_not_ready_is_rejected_with_advice(repository: Path, changed: str, words: tuple[str, ...], said: str) -> None:
    if changed:
        (repository / changed).write_text("")

    done = release(repository, "--sign", "none", *words)

    assert done.returncode == 1
    assert said in done.stderr
    assert not (repository / "build" / "release").exists()


def test_a_commit_without_the_tag_is_rejected(repository: Path) -> None:
    git(repository, "tag", "--delete", f"v{VERSION}")

    done = release(repository, "--sign", "none")

    assert done.returncode == 1
    assert "the commit has no tag, but version 0.1.0 needs v0.1.0: `git tag --annotate v0.1.0`, or try with DRAFT=1" in done.stderr


def test_all_problems_of_a_commit_are_reported_together(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace("## [0.1.0] - 2026-11-30", "## Soon"))
    chart = repository / "charts" / "gpuscaler" / "Chart.yaml"
    chart.write_text(chart.read_text().replace(f"version: {VERSION}", "version: 0.0.9"))
    commit(repository, "nightly")

    done = release(repository, "--sign", "none")

    assert done.returncode == 1
    assert "Chart.yaml says version 0.0.9, but src/gpuscaler/__init__.py 0.1.0" in done.stderr
    assert "CHANGELOG.md has no section `## [0.1.0] - DATE` with text" in done.stderr
    assert "the commit has the tags nightly, but version 0.1.0 needs v0.1.0" in done.stderr


def test_a_draft_needs_neither_a_tag_nor_a_changelog_section_nor_a_clean_tree(repository: Path) -> None:
    git(repository, "tag", "--delete", f"v{VERSION}")
    (repository / "new.py").write_text("")

    done = release(repository, "--draft", "manifest")

    assert done.returncode == 0, done.stderr
    assert "a draft of 0.1.0" in done.stdout
    assert built(repository)[f"gpuscaler-{VERSION}.notes.md"] == b"- Not said yet.\n"


def test_without_buildah_everything_but_the_image_is_built_and_the_image_reported_as_missing(repository: Path, tmp_path: Path) -> None:
    for program in ("git", "tar"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "")

    done = release(repository, "--sign", "none", "image", "chart", PATH=str(tmp_path / "bin"))

    assert done.returncode == 1
    assert "0.1.0, commit" in done.stderr
    assert "is not complete, and not signed:\nimage: buildah is not on PATH" in done.stderr
    assert f"gpuscaler-{VERSION}.tgz" in built(repository)


def test_an_unpinned_base_image_is_rejected(repository: Path, builders: Path) -> None:
    (repository / "requirements" / "base-image.txt").write_text("# later\n")
    commit(repository)

    done = release(repository, "--sign", "none", "image", PATH=f"{builders}:{os.environ['PATH']}")

    assert done.returncode == 1
    assert "requirements/base-image.txt has nothing, expected one line sha256:…" in done.stderr


@pytest.fixture
def builders(tmp_path: Path) -> Path:
    """Stand-ins for the image builder and the package finder, and their image, in which the second layer removes a package."""
    folder = tmp_path / "builders"
    blobs = folder / "layout" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for name, text in (("buildah", BUILDAH), ("cyclonedx-py", CYCLONEDX)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def blob(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    def layer(files: Mapping[str, str]) -> dict[str, str]:
        content = tmp_path / "layer"
        with tarfile.open(content, "w:gz") as tar:
            for name, text in files.items():
                (tmp_path / "file").write_text(text)
                tar.add(tmp_path / "file", name)
        return blob(content.read_bytes())

    base = layer(
        {
            "usr/lib/site-packages/pip-1.dist-info/METADATA": "",
            "usr/lib/site-packages/old-1.dist-info/METADATA": "",
            "var/lib/dpkg/status": STATUS,
            "usr/bin/python3": "x" * 3500,
        }
    )
    top = layer(
        {
            "usr/lib/site-packages/.wh.old-1.dist-info": "",
            "opt/gpuscaler/lib/site-packages/numpy-2.dist-info/METADATA": "",
            "opt/gpuscaler/lib/site-packages/numpy/core.so": "x" * 1000,
            "opt/gpuscaler/lib/site-packages/gpuscaler/model/pods.py": "x" * 2000,
            "opt/gpuscaler/lib/site-packages/gpuscaler/simulation/replay.py": "x" * 3000,
            "../etc/x.dist-info/METADATA": "",
        }
    )
    config = blob(json.dumps({"config": {"Env": ["PYTHON_VERSION=3.11.14"]}}).encode())
    manifest = blob(json.dumps({"config": config, "layers": [base, top]}).encode())
    (folder / "layout" / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    return folder


def test_chart_and_manifest_name_the_image_by_digest_in_the_target_repository(repository: Path, builders: Path) -> None:
    done = release(
        repository,
        "--sign",
        "none",
        "--image",
        "example.com/gpu/scaler",
        "image",
        "chart",
        "manifest",
        PATH=f"{builders}:{os.environ['PATH']}",
    )

    assert done.returncode == 0, done.stderr
    digest = built(repository)[f"gpuscaler-{VERSION}.oci.digest"].decode().strip()
    assert json.loads((builders / "layout" / "index.json").read_text())["manifests"][0]["digest"] == digest
    image = values(repository / "build" / "release" / f"gpuscaler-{VERSION}.tgz")["image"]
    assert (image["repository"], image["digest"]) == ("example.com/gpu/scaler", digest)
    assert f"image: example.com/gpu/scaler@{digest}\n" in built(repository)[f"gpuscaler-{VERSION}.yaml"].decode()


def test_the_image_has_the_time_of_the_commit_and_the_pinned_base(repository: Path, builders: Path) -> None:
    assert release(repository, "--sign", "none", "image", PATH=f"{builders}:{os.environ['PATH']}").returncode == 0

    call = (builders / "asked").read_text().splitlines()[0]
    pinned = (repository / "requirements" / "base-image.txt").read_text().split()[-1]
    assert f"--timestamp={git(repository, 'show', '--no-patch', '--format=%ct').strip()} " in call
    assert f"--build-arg=DIGEST=@{pinned} " in call
    with tarfile.open(repository / "build" / "release" / f"gpuscaler-{VERSION}.oci.tar") as tar:
        members = {(tar_info.uid, tar_info.mode, tar_info.uname, tar_info.mtime) for tar_info in tar}
    assert len(members) == 1


def test_the_image_lists_the_sizes_of_its_parts(repository: Path, builders: Path) -> None:
    done = release(repository, "--sign", "none", "image", PATH=f"{builders}:{os.environ['PATH']}")

    lines = {name: size for name, size, *_ in map(str.split, done.stdout.partition("image, unpacked:\n")[2].splitlines())}
    assert (lines["base"], lines["libraries"], lines["simulation"], lines["product"], lines["laboratory"]) == ("4", "1", "3", "2", "3")


def test_the_sbom_of_the_image_lists_the_content_of_its_layers(repository: Path, builders: Path, tmp_path: Path) -> None:
    from tools.release.image import Image
    from tools.release.sbom import of_image
    from tools.release.source import Source

    source = Source(folder=repository, version=VERSION, commit="abc", epoch=1, notes="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{builders}:{os.environ['PATH']}")
        file = of_image(source, tmp_path, tmp_path, image=Image(digest="sha256:12", layout=builders / "layout"))

    bill = json.loads(file.read_text())
    assert [component["name"] for component in bill["components"]] == ["numpy-2", "pip-1", "zlib1g", "python"]
    assert bill["components"][2]["purl"] == "pkg:deb/debian/zlib1g@1:1.2%2Bb1?arch=amd64&upstream=zlib@1:1.2"
    assert (bill["metadata"]["component"]["type"], bill["metadata"]["component"]["version"]) == ("container", VERSION)


def test_a_signature_made_with_a_key_file_verifies_only_for_the_signed_file(repository: Path, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        skip_or_fail("no ssh-keygen on PATH; on Debian and Ubuntu run: sudo apt-get install openssh-client")
    key = tmp_path / "key"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key), check=True, stdin=subprocess.DEVNULL)
    (tmp_path / "signers").write_text(f"maintainers {key.with_suffix('.pub').read_text()}")

    done = release(repository, "--sign", key, "manifest")

    assert done.returncode == 0, done.stderr
    sums = repository / "build" / "release" / "SHA256SUMS"
    verify = ("ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "maintainers", "-n", "gpuscaler-release", "-s", f"{sums}.sig")
    assert subprocess.run(verify, input=sums.read_bytes(), check=False, capture_output=True).returncode == 0
    assert subprocess.run(verify, input=sums.read_bytes() + b"x", check=False, capture_output=True).returncode != 0


def test_without_a_key_file_cosign_signs_the_checksums_keylessly_with_the_ci_identity(repository: Path, builders: Path) -> None:
    (builders / "cosign").write_text("""#!/bin/sh\necho "$@ as $ACTIONS_ID_TOKEN_REQUEST_TOKEN" >"$4"\n""")
    (builders / "cosign").chmod(0o755)

    path = f"{builders}:{os.environ['PATH']}"
    done = release(repository, "--sign", "keyless", "manifest", PATH=path, ACTIONS_ID_TOKEN_REQUEST_TOKEN="of the forge")

    assert done.returncode == 0, done.stderr
    bundle = built(repository)["SHA256SUMS.sigstore.json"].decode()
    assert bundle == "sign-blob --yes --bundle SHA256SUMS.sigstore.json SHA256SUMS as of the forge\n"


def test_a_missing_key_file_leaves_the_release_unsigned_with_a_message(repository: Path) -> None:
    done = release(repository, "--sign", "nowhere/key", "manifest")

    assert done.returncode == 1
    assert "signature: saw SIGN=nowhere/key, which is not a file; expected a private SSH key, `keyless` or `none`" in done.stderr


def test_the_sbom_of_the_wheel_lists_the_locked_packages_and_is_reproducible(repository: Path, builders: Path, tmp_path: Path) -> None:
    (tmp_path / "site" / "msgspec-3.dist-info").mkdir(parents=True)
    (builders / "uv").write_text(UV.format(site=tmp_path / "site"))
    (builders / "uv").chmod(0o755)

    files = []
    for _ in range(2):
        done = release(repository, "--sign", "none", "sbom", PATH=f"{builders}:{os.environ['PATH']}")
        assert done.returncode == 0, done.stderr
        files.append(built(repository)[f"gpuscaler-{VERSION}.cdx.json"])

    bill = json.loads(files[0])
    assert files[0] == files[1]
    assert [component["name"] for component in bill["components"]] == ["msgspec-3"]
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/gpuscaler@{VERSION}"
    assert bill["serialNumber"].startswith("urn:uuid:")
    assert "--require-hashes --only-binary :all:" in (builders / "asked").read_text()
