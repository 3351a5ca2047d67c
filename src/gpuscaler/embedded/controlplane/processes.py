"""One program of a control plane as a process, with its log in a file."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Seconds that a process gets to end by itself.
PATIENCE = 5.0
#: Lines of a log that are shown when its process has ended.
SHOWN = 8


class EndedError(Exception):
    """A program that should run has ended; the text has the end of its log."""


class Process:
    """The program of ``command``, from :meth:`start` to :meth:`end`; a ``tied`` one ends with this process, however that ends."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, environ: Mapping[str, str], tied: bool) -> None:
        self.name, self.log = name, log
        self._command, self._environ, self._tied = tuple(command), environ, tied
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {**self._environ, **({"CONTROLPLANE_TIED": "1"} if self._tied else {})}
        stdin = subprocess.PIPE if self._tied else subprocess.DEVNULL
        with self.log.open("ab") as out:
            # In a session of its own: Ctrl-C in a terminal goes only to the process that holds it, which then ends the program properly.
            self._popen = subprocess.Popen(  # noqa: S603 - programs that were compiled here, or that the user named
                self._command, stdin=stdin, stdout=out, stderr=subprocess.STDOUT, env=environ, start_new_session=True
            )

    def check(self) -> None:
        """Raise :exc:`EndedError` unless it runs."""
        code = self._popen.poll() if self._popen else None
        if code is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-SHOWN:]
            raise EndedError(f"{self.name} ended with {code}; the end of its log {self.log}:\n  " + "\n  ".join(lines))

    def pause(self) -> None:
        """Stop its execution until :meth:`go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """Ask it to end; kill it if that takes too long."""
        self._signal(signal.SIGCONT)
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._popen is None:
            return
        self._signal(how)
        try:
            self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._popen = None

    def _signal(self, which: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            os.kill(self._popen.pid, which)
