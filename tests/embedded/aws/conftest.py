"""An endpoint in the same process, with a clock that only a test moves, and boto3 clients that call it."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.embedded.aws.clients import Client, Options, shared_client

from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.models import Models

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

BEGAN = 1_790_000_000.0
#: Loaded once, because that takes a tenth of a second.
MODELS = Models()
NOTHING_MORE = Options({})


class Aws:
    """An account of ours and a clock; ``client`` makes boto3 clients for it that never retry."""

    def __init__(self, conditions: Conditions | None = None, **options: Any) -> None:
        self.time = BEGAN
        self.account = Account(now=lambda: self.time, conditions=conditions, **options)
        self.endpoint = Endpoint(self.account, MODELS, seed=options.get("seed", 0))

    def client(self, service: str, region: str = "us-east-1") -> Any:
        return Client(shared_client(plain_client, service, region, NOTHING_MORE), self.endpoint)

    def later(self, seconds: float) -> None:
        self.time += seconds
        self.account.advance()


def plain_client(service: str, endpoint_url: str, region_name: str = "us-east-1") -> Any:
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=25)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client(service, region_name=region_name, endpoint_url=endpoint_url, config=config, **keys)


@pytest.fixture
def aws() -> Aws:
    return Aws()


@pytest.fixture
def make_aws() -> Callable[..., Aws]:
    return Aws


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """moto's server, in a process of its own."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with closing(socket.socket()) as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
