"""Asking the kubelet over its unix socket.

The socket lies in a directory that is mounted as a whole: a kubelet that starts again makes a new one, and a mount of the file would keep
the old one. A connection that failed is dropped and made anew at the next question.
"""

import stat
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]  # it ships none

from gpuscaler.exporter.attribution.allocations import Allocations
from gpuscaler.exporter.attribution.messages import LIST, ListAnswers, NotListedError

_OPTIONS: Final = (
    # grpcio 1.57 and later send the path of the socket, with its slashes encoded, as :authority. Servers that want a host's name there
    # refuse it (grpc/grpc#34305, #38142).
    ("grpc.default_authority", "localhost"),
    # A proxy in the environment is not for a socket of this machine.
    ("grpc.enable_http_proxy", 0),
    # A new channel would go on with the connection of the one before, and with its pauses between attempts, which grow to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 * 2**20),
)


class KubeletError(Exception):
    """The kubelet could not be asked, or did not say; the message is a sentence for people."""


class PodResources:
    """Lists what the kubelet behind ``socket`` allocated. Blocks its thread, for ``timeout`` seconds at most.

    A kubelet answers a hundred questions a second for all of its clients together; how often this one asks is the caller's choice.
    """

    def __init__(self, socket: Path, *, timeout: float = 1.0) -> None:
        self._socket, self._timeout = socket, timeout
        self._answers = ListAnswers()
        self._channel: Any = None
        self._list: Any = None

    def allocations(self) -> Allocations:
        """What is allocated now. Raises :class:`KubeletError`."""
        self._look()
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
            self._list = self._channel.unary_unary(LIST)
        try:
            return self._answers.read(self._list(b"", timeout=self._timeout))
        except NotListedError as error:
            raise KubeletError(f"the kubelet at {self._socket} {error}") from error
        except grpc.RpcError as error:
            self.close()
            raise KubeletError(self._told(error)) from error

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._list = None

    def _look(self) -> None:
        # A path that is not there, or is something else, is told in its own words and costs no attempt to connect.
        try:
            mode = self._socket.stat().st_mode
        except OSError as error:
            self.close()
            what = "user 0, whose folder it is" if isinstance(error, PermissionError) else "the directory that holds it mounted"
            raise KubeletError(f"no kubelet socket at {self._socket} ({error.strerror}): expected {what}") from error
        if not stat.S_ISSOCK(mode):
            self.close()
            raise KubeletError(f"{self._socket} is no socket: expected the kubelet's, in its directory pod-resources")

    def _told(self, error: Any) -> str:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the kubelet at {self._socket} did not answer within {self._timeout:g} s"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"the kubelet at {self._socket} has no v1.PodResourcesLister: expected Kubernetes 1.20 or later"
        return f"the kubelet at {self._socket} answered {code.name} ({error.details()})"
