"""Asks the kubelet over its unix socket.

The directory of the socket is mounted as a whole: a kubelet that restarts makes a new socket, and a mount of the file would keep the old
one. A connection that failed is dropped, and a new one is made for the next request.
"""

import stat
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]  # it ships none

from gpuscaler.exporter.attribution.allocations import Allocations
from gpuscaler.exporter.attribution.messages import LIST, ListAnswers, NotListedError

_OPTIONS: Final = (
    # grpcio 1.57 and later send the path of the socket, with its slashes encoded, as :authority. Servers that require a host name there
    # reject it (grpc/grpc#34305, #38142).
    ("grpc.default_authority", "localhost"),
    # A proxy from the environment must not be used for a socket of this machine.
    ("grpc.enable_http_proxy", 0),
    # Otherwise a new channel reuses the connection of the previous one, and its pauses between attempts, which grow to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 * 2**20),
)


class KubeletError(Exception):
    """The kubelet could not be asked, or did not answer; the message is a sentence for people."""


class PodResources:
    """Lists the allocations of the kubelet behind ``socket``. Blocks its thread for at most ``timeout`` seconds.

    A kubelet answers a hundred requests a second for all of its clients together; the caller decides how often to ask.
    """

    def __init__(self, socket: Path, *, timeout: float = 1.0) -> None:
        self._socket, self._timeout = socket, timeout
        self._answers = ListAnswers()
        self._channel: Any = None
        self._list: Any = None

    def allocations(self) -> Allocations:
        """The current allocations. Raises :class:`KubeletError`."""
        self._check_socket()
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
            self._list = self._channel.unary_unary(LIST)
        try:
            return self._answers.read(self._list(b"", timeout=self._timeout))
        except NotListedError as error:
            raise KubeletError(f"the kubelet at {self._socket} {error}") from error
        except grpc.RpcError as error:
            self.close()
            raise KubeletError(self._describe_error(error)) from error

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._list = None

    def _check_socket(self) -> None:
        # A path that is missing or not a socket gets its own message, without an attempt to connect.
        try:
            mode = self._socket.stat().st_mode
        except OSError as error:
            self.close()
            expected = "to run as user 0, which owns its folder" if isinstance(error, PermissionError) else "its directory to be mounted"
            raise KubeletError(f"no kubelet socket at {self._socket} ({error.strerror}): expected {expected}") from error
        if not stat.S_ISSOCK(mode):
            self.close()
            raise KubeletError(f"{self._socket} is not a socket: expected the kubelet's socket, in its directory pod-resources")

    def _describe_error(self, error: Any) -> str:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the kubelet at {self._socket} did not answer within {self._timeout:g} s"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"the kubelet at {self._socket} has no v1.PodResourcesLister: expected Kubernetes 1.20 or later"
        return f"the kubelet at {self._socket} answered {code.name} ({error.details()})"
