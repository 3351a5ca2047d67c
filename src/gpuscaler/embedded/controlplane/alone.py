"""A real control plane alone, with kubelets that simulate the pods of all nodes, and a kubeconfig for its users."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from gpuscaler.embedded.controlplane.building import Programs
from gpuscaler.embedded.controlplane.plane import ADMIN, MASTERS, ControlPlane
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.serving.accounts import AccountServer
from gpuscaler.embedded.serving.alone import PULL, check_overwritable, kubeconfig_text, ready_conditions, write_kubeconfig
from gpuscaler.embedded.serving.cluster import UNLIMITED
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import NODES, PODS


class StandaloneControlPlane:
    """The control plane of ``programs`` at ``port`` (0: a free one) until :meth:`run` is cancelled.

    ``nodes`` exist from the start. ``ready`` gets the URL once all parts are healthy. The kubeconfig is written then, readable only for its
    owner; it is removed at the end, like all other files. ``environ`` is the environment of the programs. ``beside`` is an account of a
    cloud that is served too.
    """

    def __init__(
        self,
        kubeconfig: Path,
        programs: Programs,
        *,
        environ: Mapping[str, str],
        nodes: Sequence[Mapping[str, Any]] = (),
        port: int = 0,
        ready: Callable[[str], None],
        beside: AccountServer | None = None,
    ) -> None:
        self._beside = beside
        self._kubeconfig, self._programs, self._environ = kubeconfig, programs, environ
        self._nodes, self._port, self._ready = nodes, port, ready
        check_overwritable(kubeconfig)

    async def run(self) -> None:
        """Serve until cancelled. Raises :exc:`~gpuscaler.embedded.controlplane.processes.EndedError` if a program ends, and OSError."""
        with tempfile.TemporaryDirectory(prefix="gpuscaler-") as folder:
            plane = ControlPlane(self._programs, Path(folder) / "plane", now=time.time(), environ=self._environ, port=self._port)
            await plane.start()
            config = plane.config(pair=plane.certificate(ADMIN, MASTERS))
            try:
                async with HttpTransport(plane.access()) as transport:
                    client = Client(transport, field_manager="kubelet", limit=RateLimit(qps=UNLIMITED, burst=1_000_000))
                    for node in self._nodes:
                        await client.create(NODES, {**node, "status": {**node["status"], "conditions": ready_conditions(time.time())}})
                    write_kubeconfig(self._kubeconfig, config)
                    self._ready(plane.url)
                    draw = Random(0)
                    picture = Picture(client, clock=asyncio.get_running_loop().time, random=draw, resources=(PODS, NODES))
                    kubelets = Kubelets(client, picture, now=time.time, pull=lambda _node: PULL.sample(draw))
                    if self._beside is None:
                        await self._live(plane, picture, kubelets)
                    else:
                        async with self._beside.run(client, now=time.time, kubelets=kubelets):
                            await self._live(plane, picture, kubelets)
            finally:
                # Another cluster or a user may have written there since.
                with suppress(OSError, ValueError):
                    if self._kubeconfig.read_text(encoding="utf-8") == kubeconfig_text(config):
                        self._kubeconfig.unlink()
                plane.stop()

    async def _live(self, plane: ControlPlane, picture: Picture, kubelets: Kubelets) -> None:
        lives = [asyncio.create_task(part.run()) for part in (plane, picture, kubelets)]
        try:
            await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for life in lives:
                life.cancel()
            ended = await asyncio.gather(*lives, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result
