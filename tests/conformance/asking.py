"""A running oracle: takes one case at a time and returns its answer."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

Json = dict[str, Any]


class OracleError(Exception):
    """The oracle could not read a case, or it exited."""


class Oracle:
    """The oracle's process. Use it as a context manager; one thread at a time."""

    def __init__(self, binary: Path) -> None:
        self._process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def ask(self, case: Json) -> Json:
        """The oracle's answer to ``case`` (both forms are described in ``oracle/case.go``). Raises :exc:`OracleError`."""
        self._in.write(json.dumps(case, separators=(",", ":")).encode() + b"\n")
        self._in.flush()
        line = self._out.readline()
        if not line:
            raise OracleError(f"the oracle exited with status {self._process.wait()} instead of answering")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise OracleError(f"the oracle refused a case: {answer['error']}")
        return answer

    def __enter__(self) -> "Oracle":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._in.close()
        self._process.wait()
        self._out.close()
