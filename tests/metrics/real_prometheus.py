"""A real Prometheus, of the system's packages: the one that is installed, or the package unpacked into the user's cache."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from tests.lacking import lacking

from gpuscaler.serving.cache_folder import cache_of

#: Seconds that a slow machine gets for anything.
PATIENCE = 60.0


def binary() -> Path:
    """The program; the test lacks it where there is none and none can be had."""
    installed = shutil.which("prometheus")
    if installed:
        return Path(installed)
    cache = cache_of(os.environ)
    kept = cache / "prometheus" / "usr" / "bin" / "prometheus"
    if kept.exists():
        return kept
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        lacking("saw no program prometheus and no apt-get, expected one of the two; install the package prometheus")
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        package, why = _downloaded(folder)
        if package is None:
            lacking(f"saw no program prometheus and no package of it ({why}), expected one of the two; install the package prometheus")
        subprocess.run(["dpkg-deb", "-x", package, folder / "unpacked"], check=True, timeout=300)
        if not kept.exists():
            (folder / "unpacked").rename(cache / "prometheus")
    return kept


def _downloaded(folder: Path) -> tuple[Path | None, str]:
    """The package, or None and why not; where the system has no list of its packages, by a list of our own."""
    lists, words = folder / "lists", ["apt-get", "-q"]
    (lists / "partial").mkdir(parents=True)
    own = [*words, "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder}"]
    why = ""
    for command in ([*words, "download", "prometheus"], [*own, "update"], [*own, "download", "prometheus"]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        why = done.stderr.strip().rpartition("\n")[2]
        if found := list(folder.glob("prometheus_*.deb")):
            return found[0], ""
    return None, why


@dataclass
class RealPrometheus:
    """``targets`` are HOST:PORT, scraped every second."""

    program: Path
    folder: Path
    targets: Sequence[str]
    port: int = 0
    config: str = ""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Begin, or begin anew with what was stored; returns once it answers."""
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
            self._process = await asyncio.create_subprocess_exec(
                self.program,
                f"--config.file={file}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE):
            while not await self._ready(session):
                if self._process.returncode is not None:
                    raise AssertionError((self.folder / "prometheus.log").read_text()[-2000:])
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def real_prometheus(program: Path, folder: Path, *targets: str, config: str = "") -> AsyncIterator[RealPrometheus]:
    """Scraping ``targets`` until the end; ``config`` is more of its configuration."""
    running = RealPrometheus(program, folder, targets, config=config)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
