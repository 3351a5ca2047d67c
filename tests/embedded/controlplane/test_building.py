"""The sources of a control plane's programs."""

from pathlib import Path

import pytest
from tests.embedded.controlplane.going import working_go

from gpuscaler.embedded.controlplane.building import DEFAULT, NAMES, PINNED, Progress, programs
from gpuscaler.embedded.controlplane.golang import BuildError, needed_version
from gpuscaler.embedded.controlplane.modules import go_mod, release_of

THEIRS = """module k8s.io/kubernetes

go 1.24.0

require (
\tgithub.com/spf13/cobra v1.8.1
)

require (
\tgo.etcd.io/etcd/server/v3 v3.5.21 // indirect
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/apimachinery => ./staging/src/k8s.io/apimachinery
)
"""


def silent(_: str) -> None:
    pass


def environ(tmp_path: Path, *lines: str) -> dict[str, str]:
    """The environment of a machine with a Go release that runs ``lines``."""
    return {"PATH": str(working_go(tmp_path / "bin", *lines).parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_programs_are_compiled_once_and_have_their_usual_names(tmp_path: Path) -> None:
    messages: list[str] = []
    where = environ(tmp_path)

    built = programs(DEFAULT, environ=where, progress=Progress(messages.append))
    assert programs(f"v{DEFAULT}", environ=where, progress=Progress(messages.append)) == built
    assert [(built.folder / name).read_text() for name in NAMES] == ["binary"] * 4
    assert (built.release, built.tied) == (DEFAULT, True)
    assert len(messages) == 1
    assert DEFAULT in messages[0]


def test_progress_counts_compiled_packages(tmp_path: Path) -> None:
    counted: list[int] = []
    noisy = 'print("go: downloading k8s.io/api", file=sys.stderr); print("k8s.io/api", file=sys.stderr); print("main", file=sys.stderr)'

    programs(DEFAULT, environ=environ(tmp_path, noisy), progress=Progress(silent, counted.append))
    assert counted == [1, 2]


def test_programs_are_built_with_the_version_of_the_release(tmp_path: Path) -> None:
    built = programs(
        DEFAULT, environ=environ(tmp_path, f"open({str(tmp_path / 'words')!r}, 'w').write(' '.join(sys.argv))"), progress=Progress(silent)
    )

    words = (tmp_path / "words").read_text()
    assert f"-X k8s.io/component-base/version.gitVersion=v{built.release}" in words
    assert "-mod=readonly" in words


def test_a_failed_build_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    where = environ(tmp_path, "sys.exit('undefined: app')")
    with pytest.raises(BuildError, match=r"(?s)Kubernetes 1.35.4: cannot be compiled; .* use another release .*undefined: app"):
        programs(DEFAULT, environ=where, progress=Progress(silent))

    assert list((tmp_path / "cache" / "gpuscaler" / "controlplane").iterdir()) == []
    assert programs(DEFAULT, environ=environ(tmp_path), progress=Progress(silent)).release == DEFAULT


def test_existing_programs_are_used_without_building(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).touch()

    existing = programs(DEFAULT, environ={"KUBEBUILDER_ASSETS": str(tmp_path)}, progress=Progress(silent))
    assert (existing.folder, existing.release, existing.tied) == (tmp_path, "", False)


def test_the_error_names_missing_programs(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    (tmp_path / "kube-apiserver").touch()
    with pytest.raises(BuildError, match=r"saw no kube-controller-manager, kube-scheduler, expected etcd, .*unset KUBEBUILDER_ASSETS"):
        programs(DEFAULT, environ={"KUBEBUILDER_ASSETS": str(tmp_path)}, progress=Progress(silent))


@pytest.mark.parametrize("text", ["1.35", "latest", "2.0.0", "1.35.4-rc.1", "../1.35.4"])
def test_an_invalid_release_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match=r"expected three numbers such as 1\.35\.4"):
        release_of(text)


def test_the_go_module_of_a_release_uses_its_staging_modules_and_its_etcd() -> None:
    made = go_mod(THEIRS, "1.33.13")

    assert needed_version(made) == (1, 24, 0)
    assert "\tk8s.io/kubernetes v1.33.13\n" in made
    assert "\tgo.etcd.io/etcd/server/v3 v3.5.21\n" in made
    assert "\tk8s.io/apimachinery => k8s.io/apimachinery v0.33.13\n" in made


@pytest.mark.parametrize(
    ("theirs", "message"),
    [("module x\n", "expected both"), (THEIRS.replace("cobra", "other"), "without github.com/spf13/cobra")],
)
def test_a_go_module_that_does_not_look_like_kubernetes_is_refused(theirs: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        go_mod(theirs, "1.33.13")


def test_the_sources_of_the_default_release_are_pinned_by_hashes() -> None:
    sums = (PINNED / DEFAULT / "go.sum").read_text()
    assert f"k8s.io/kubernetes v{DEFAULT} h1:" in sums
    assert f"k8s.io/kubernetes v{DEFAULT}\n" in (PINNED / DEFAULT / "go.mod").read_text()
