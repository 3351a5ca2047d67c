"""The image: its Dockerfile, and its steps run in a folder instead of a container."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.charts.dockerfile import FILE, carry_out, is_sent, stages
from tests.charts.rendering import ROOT
from tests.conformance.building import built as compiled

VALUES = yaml.safe_load((ROOT / "charts" / "gpuscaler" / "values.yaml").read_text())

#: Reports every file that the program opens for writing.
WATCHING = """
import os, sys

def told(event, given):
    if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and given[0] != os.devnull:
        os.write(2, f"wrote {given[0]}\\n".encode())
    if event in {"os.mkdir", "os.rename", "os.remove"}:
        os.write(2, f"wrote {given[0]}\\n".encode())

sys.addaudithook(told)
"""


def test_both_image_stages_have_the_same_base_without_a_registry_name() -> None:
    bases = {stage.base for stage in stages()}

    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim", bases.pop())


def test_every_package_is_installed_by_its_hash() -> None:
    installs = [line for stage in stages() for run in stage.of("RUN") for line in run.split("&&") if " install " in line]

    assert len(installs) >= 3
    assert [line for line in installs if "--require-hashes" not in line and "--no-index" not in line] == []
    assert [stage for stage in stages() if stage.of("ADD")] == []


def test_by_default_the_image_buys_from_aws_and_measures() -> None:
    (extras,) = [line.partition("=")[2].strip('"').split() for line in stages()[0].of("ARG") if line.startswith("EXTRAS=")]

    assert set(extras) == {"aws", "exporter"}
    assert all((ROOT / "requirements" / f"{extra}.txt").exists() for extra in extras)


def test_the_image_runs_as_the_charts_user_which_is_set_in_the_last_build_step() -> None:
    last = stages()[-1]

    assert last.of("USER") == ["{runAsUser}:{runAsGroup}".format(**VALUES["controller"]["podSecurityContext"])]
    assert last.of("RUN") == []
    assert last.of("ENTRYPOINT") == ['["gpuscaler"]']


def test_the_build_context_contains_all_copied_files_and_no_secrets() -> None:
    copied = [source.rstrip("/") for stage in stages() for line in stage.of("COPY") if "--from" not in line for source in line.split()[:-1]]

    assert [source for source in copied if not (ROOT / source).exists() or not is_sent(source)] == []
    assert not any(is_sent(path) for path in (".git", ".venv", "tests", "build", "kubeconfig", "docs"))


def checked(dockerfile: str) -> tuple[int, str]:
    """Return BuildKit's result for a Dockerfile: 0 and no output if there are no problems."""
    program = compiled("dockerfile", Path(__file__).parent / "buildkit", print)
    done = subprocess.run((program,), input=dockerfile, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.charts
def test_buildkit_reports_no_problems_in_the_dockerfile() -> None:
    assert checked(FILE.read_text()) == (0, "")


@pytest.mark.charts
def test_buildkit_reports_problems_in_a_faulty_dockerfile() -> None:
    code, output = checked(FILE.read_text().replace("--from=build", "--from=builder").replace("USER ", "USERS "))

    assert code == 1
    assert "unknown instruction: USERS" in output
    assert "ConsistentInstructionCasing" in checked(FILE.read_text().replace("WORKDIR /tmp", "workdir /tmp"))[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image")
    carry_out(stages()[0], root, arguments={"EXTRAS": "exporter"})
    return root / "opt" / "gpuscaler" / "bin"


@pytest.mark.charts
def test_the_build_steps_install_the_program_with_the_requested_extras(built: Path) -> None:
    packages = subprocess.run(
        (built / "python", "-c", "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert {"gpuscaler", "aiohttp", "grpcio", "nvidia-ml-py"} <= set(packages)
    assert not {"pip", "boto3", "pytest", "hatchling", "uv"} & set(packages)


@pytest.mark.charts
def test_the_program_in_the_image_measures_simulated_gpus(built: Path) -> None:
    command = (built / "gpuscaler", "exporter", "--backend", "simulated", "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as exporter:
        assert exporter.stderr is not None
        measuring = next((line for line in exporter.stderr if "measuring" in line), "")
        exporter.terminate()

    assert "measuring 8 GPUs" in measuring


@contextmanager
def cluster(programs: Path, kubeconfig: Path) -> Iterator[None]:
    """An embedded cluster; yields its kubeconfig."""
    command = (programs / "gpuscaler", "cluster", "--kubeconfig", kubeconfig)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.charts
def test_the_program_in_the_image_writes_only_to_its_history_folder(built: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCHING)
    (tmp_path / "run.yaml").write_text(
        "{region: us-east-1, cloud: simulated, namespace: kube-system, history: {folder: history}, "
        "http: {address: '127.0.0.1:0'}, pages: {address: '127.0.0.1:0'}, "
        "simulated: {kubelet: false, boot: 1s}, pools: [{name: gpu, types: [g5.xlarge]}]}"
    )
    (tmp_path / "history").mkdir()
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "HOME": "/"}
    command = (built / "gpuscaler", "run", "--config", tmp_path / "run.yaml", "--kubeconfig", tmp_path / "kubeconfig")
    with (
        cluster(built, tmp_path / "kubeconfig"),
        subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as controller,
    ):
        lines = []
        assert controller.stderr is not None
        for line in controller.stderr:
            lines.append(line)
            if "this process leads" in line:
                controller.terminate()
    assert controller.returncode == 0, "".join(lines)
    written = {line.removeprefix("wrote ").strip() for line in lines if line.startswith("wrote ")}

    assert any("this process leads" in line for line in lines)
    assert {path for path in written if not path.startswith(str(tmp_path / "history"))} == set()
