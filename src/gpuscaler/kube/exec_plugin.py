"""Credentials from an exec plugin: a program that prints a token or a certificate, for client.authentication.k8s.io v1 and v1beta1."""

import asyncio
import os
import re
import shutil
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuscaler.kube.credentials import RequestCredentials, bearer_header
from gpuscaler.kube.errors import AccessError, CredentialsError
from gpuscaler.kube.tls import ClientCertificate
from gpuscaler.model.wire import UnreadableError, Wire, parse_timestamp

GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
MODES = ("Never", "IfAvailable", "Always")
#: How many characters of a plugin's stderr are quoted.
_QUOTED = 300


class WireCredentialStatus(Wire):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class WireExecCredential(Wire):
    api_version: str | None = None
    kind: str | None = None
    status: WireCredentialStatus | None = None


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A plugin's validated settings from a kubeconfig. ``owner`` names its user; ``cluster`` is the cluster information for the plugin.

    ``folder`` is that of the kubeconfig: a command with a slash is relative to it. ``attended`` means that a user is at a terminal.
    """

    owner: str
    api_version: str
    command: str
    folder: Path
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    mode: str = "IfAvailable"
    attended: bool = False
    hint: str = ""
    cluster: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.api_version not in VERSIONS:
            raise AccessError(f"{self}: saw the apiVersion {self.api_version!r}, expected {' or '.join(VERSIONS)}; update the plugin")
        if not self.command:
            raise AccessError(f"{self.owner}: exec: saw no command, expected a program; add it")
        if self.mode not in MODES:
            raise AccessError(f"{self}: saw the interactiveMode {self.mode!r}, expected one of {', '.join(MODES)}; correct it")

    def __str__(self) -> str:
        return f"{self.owner}: exec plugin {self.command!r}"

    @property
    def interactive(self) -> bool:
        """Whether the plugin may prompt the user at the terminal."""
        return self.attended and self.mode != "Never"

    def program(self, environ: Mapping[str, str]) -> str:
        """The path of the program; raises :class:`CredentialsError` with the plugin's install hint if it is missing."""
        local = "/" in self.command
        path = shutil.which(str(self.folder / self.command) if local else self.command, path=environ.get("PATH", os.defpath))
        if path is None:
            place = f"in {self.folder}" if local else "on the PATH"
            hint = " ".join(self.hint.split()) or "install it or correct the kubeconfig"
            raise CredentialsError(f"{self}: saw no such program {place}, expected an executable; {hint}")
        return path

    def info(self) -> str:
        """The value of KUBERNETES_EXEC_INFO."""
        spec = {"interactive": self.interactive, **({} if self.cluster is None else {"cluster": self.cluster})}
        return msgspec.json.encode({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}).decode()


@dataclass(slots=True)
class ExecPlugin:
    """Credentials that a program prints, kept until they expire or are refused.

    The program runs in its own task: a request that times out does not stop it, so a slow plugin finishes even if each request has less
    time than the plugin needs. It never runs again within ``pause`` seconds; until then its last result stands.
    """

    command: PluginCommand
    environ: Mapping[str, str] = field(repr=False)
    now: Callable[[], float] = time.time
    time_limit: float = 60.0
    pause: float = 5.0
    _presented: RequestCredentials | None = field(default=None, init=False, repr=False)
    _failure: str = field(default="", init=False)
    _expires: float = field(default=float("inf"), init=False)
    _ended: float = field(default=float("-inf"), init=False)
    _running: asyncio.Task[None] | None = field(default=None, init=False, repr=False)

    async def current(self) -> RequestCredentials:
        if self._presented is None or self.now() >= self._expires:
            await self._run()
        return self._result()

    async def renewed(self, refused: RequestCredentials) -> RequestCredentials | None:
        if self._presented is refused:
            await self._run()
        presented = self._result()
        return None if presented is refused else presented

    def _result(self) -> RequestCredentials:
        if self._failure or self._presented is None:
            raise CredentialsError(self._failure)
        return self._presented

    async def _run(self) -> None:
        if self._running is None:
            if asyncio.get_running_loop().time() - self._ended < self.pause:
                return
            self._running = asyncio.create_task(self._renew(), name=f"exec plugin {self.command.command}")
        await asyncio.shield(self._running)

    async def _renew(self) -> None:
        """Run the program and keep its result or error; nothing is raised, since all waiting requests may have timed out."""
        try:
            self._presented, self._expires = self._read(await self._output())
            self._failure = ""
        except CredentialsError as error:
            self._failure = str(error)
        finally:
            self._ended = asyncio.get_running_loop().time()
            self._running = None

    async def _output(self) -> bytes:
        command = self.command
        if command.mode == "Always" and not command.attended:
            raise CredentialsError(
                f"{command}: saw the interactiveMode Always and no terminal, expected a user to answer it; "
                "use a plugin or mode that needs none, or a service account's token"
            )
        environ = {**self.environ, **command.env, "KUBERNETES_EXEC_INFO": command.info()}
        # The user must see the prompts of an interactive plugin; otherwise stderr is captured for the message.
        stderr = None if command.interactive else PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                command.program(environ),
                *command.args,
                stdin=None if command.interactive else DEVNULL,
                stdout=PIPE,
                stderr=stderr,
                env=environ,
            )
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "it cannot be run with these arguments"
            raise CredentialsError(f"{command}: saw {problem}, expected an executable; correct it") from None
        out, err = await self._communicate(process)
        if process.returncode:
            problem = f': "{redacted(err.decode(errors="replace"))}"' if err and err.strip() else ""
            raise CredentialsError(
                f"{command}: exited with {process.returncode}, expected 0{problem}; run it yourself to see what it needs"
            )
        return out

    async def _communicate(self, process: Process) -> tuple[bytes, bytes]:
        try:
            async with asyncio.timeout(self.time_limit):
                return await process.communicate()
        except TimeoutError:
            raise CredentialsError(
                f"{self.command}: saw it running after {self.time_limit:g} s, expected it to exit by then; run it yourself to see why"
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _read(self, output: bytes) -> tuple[RequestCredentials, float]:
        """Parse the program's output, and return its expiry in seconds since the epoch. Its content is never quoted."""
        command = self.command
        try:
            exec_credential = msgspec.json.decode(output, type=WireExecCredential)
            status = exec_credential.status or WireCredentialStatus()
            expires = parse_timestamp(status.expiration_timestamp, "status.expirationTimestamp") or float("inf")
        except (msgspec.DecodeError, UnreadableError) as error:
            problem = "its expirationTimestamp is not a time" if isinstance(error, UnreadableError) else "it is not valid JSON"
            raise CredentialsError(f"{command}: printed no ExecCredential ({problem}); run it yourself to see what it prints") from None
        if exec_credential.kind != "ExecCredential" or exec_credential.api_version != command.api_version:
            raise CredentialsError(
                f"{command}: printed the kind {_quote_short(exec_credential.kind)} of {_quote_short(exec_credential.api_version)}, "
                "expected ExecCredential of "
                f"{command.api_version}; make the kubeconfig's apiVersion and the plugin's the same"
            )
        if bool(status.client_certificate_data) != bool(status.client_key_data) or not (status.token or status.client_key_data):
            raise CredentialsError(
                f"{command}: printed neither a token nor both of clientCertificateData and clientKeyData, expected one of the two; "
                "run it yourself to see what it prints"
            )
        try:
            headers = {"authorization": bearer_header(status.token, str(command))} if status.token else {}
        except AccessError as error:
            raise CredentialsError(str(error)) from None
        certificate = None
        if status.client_certificate_data and status.client_key_data:
            certificate = ClientCertificate(status.client_certificate_data.encode(), status.client_key_data.encode())
        return RequestCredentials(headers, certificate), expires


def redacted(text: str) -> str:
    """The end of a program's message, without words that look like keys: long ones of mixed letters and digits, or of hex digits."""
    return re.sub(r"[A-Za-z0-9_+/=-]{20,}", _mask_key, " ".join(text[-20 * _QUOTED :].split()))[-_QUOTED:]


def _mask_key(match: re.Match[str]) -> str:
    word = match.group()
    mixed = all(re.search(signs, word) for signs in ("[a-z]", "[A-Z]", "[0-9]"))
    return "…" if mixed or re.search("[0-9a-f]{32}|[0-9A-F]{32}", word) else word


def _quote_short(text: str | None) -> str:
    return repr((text or "")[:60])
