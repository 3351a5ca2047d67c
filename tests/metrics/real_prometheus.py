"""A real Prometheus from the system's packages: the installed one, or the package unpacked into the user's cache."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tests.debian_packages import packaged
from tests.lacking import skip_or_fail

#: Time-out in seconds, long enough for a slow machine.
PATIENCE = 60.0


def binary() -> Path:
    """The program; the test is skipped if it is neither installed nor available."""
    installed = shutil.which("prometheus")
    return Path(installed) if installed else packaged("prometheus", "usr/bin/prometheus")


def store(program: Path, folder: Path, pages: Mapping[float, str]) -> None:
    """Store pages in the database of a Prometheus in ``folder`` before it starts, as if it had scraped them at the given Unix times.

    This takes a tenth of a second, while Prometheus scrapes a new target only after five seconds.
    """
    promtool = program.resolve().with_name("promtool")
    if not promtool.exists():
        skip_or_fail(
            f"saw no promtool beside {program}, expected it there as in all packages of Prometheus; install the package prometheus"
        )
    lines = [f"{_labelled(line)} {at}\n" for at, page in pages.items() for line in page.splitlines()]
    file = folder / "pages.txt"
    file.write_text("".join(lines) + "# EOF\n", encoding="utf-8")
    (folder / "data").mkdir()
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def _labelled(line: str) -> str:
    """A line of a page, with the labels that a scrape adds."""
    series, _, value = line.rpartition(" ")
    name, _, labels = series.removesuffix("}").partition("{")
    return f'{name}{{{labels}{"," if labels else ""}instance="127.0.0.1:9000",job="gpus"}} {value}'


@dataclass
class RealPrometheus:
    """A Prometheus process. ``targets`` are HOST:PORT, scraped every second from five seconds after the start."""

    program: Path
    folder: Path
    targets: Sequence[str]
    port: int = 0
    config: str = ""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start, or restart with the stored data, without waiting until it answers."""
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        file = self.folder / "prometheus.yml"
        listed = ", ".join(f'"{target}"' for target in self.targets)
        file.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: gpus, static_configs: [{{targets: [{listed}]}}]}}]\n{self.config}"
        )
        with (self.folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self.program),
                    f"--config.file={file}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    async def start(self) -> None:
        """Start, or restart with the stored data; return once it answers."""
        self.launch()
        await self.answers()

    async def answers(self) -> None:
        """Wait until it answers."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE):
            while not await self._ready(session):
                if self._process is None or self._process.poll() is not None:
                    raise AssertionError((self.folder / "prometheus.log").read_text()[-2000:])
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        await asyncio.to_thread(self.terminate)

    def terminate(self) -> None:
        """Stop as :meth:`stop` does, outside an event loop."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def real_prometheus(program: Path, folder: Path, *targets: str, config: str = "") -> AsyncIterator[RealPrometheus]:
    """A Prometheus that scrapes ``targets`` until the end of the block; ``config`` is additional configuration."""
    running = RealPrometheus(program, folder, targets, config=config)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
