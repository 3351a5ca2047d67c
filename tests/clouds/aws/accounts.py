"""An AWS account in this process, its contents, and ways to read it: the real boto3 calls our own endpoint."""

from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any

import pytest
from tests.embedded.aws.clients import Client, Options, shared_client

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery, DiscoveryResult
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.models import Models

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

#: Loaded once.
MODELS = Models()

BEGAN = 1_790_000_000.0
CLUSTER = "research"
CA = "k8s.io/cluster-autoscaler"
DISCOVERED = {f"{CA}/enabled": "true", f"{CA}/{CLUSTER}": "owned"}


@cache
def _session() -> Any:
    """One loader for all tests: loading the models of the services takes longer than any test."""
    return boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test")


class Session:
    """A boto3 session with clients that call the in-memory endpoint; ``call_counts`` counts their calls by operation."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.call_counts: dict[str, int] = {}
        self._create = _session().client

    def client(self, service: str, *, region_name: str, endpoint_url: str | None = None, **options: Any) -> Any:  # noqa: ARG002
        """boto3's client; ``endpoint_url`` is ignored."""
        return Client(shared_client(self._create, service, region_name, Options(options)), self.endpoint, sent=self._count)

    def _count(self, operation: str) -> None:
        self.call_counts[operation] = self.call_counts.get(operation, 0) + 1


class Aws:
    """An account whose clock stands still until a test moves it. ``waited`` are the pauses between tries."""

    def __init__(self, *, regions: tuple[str, ...] = ("us-east-1",), conditions: Conditions | None = None) -> None:
        self.time = BEGAN
        self.regions = regions
        self.account = Account(now=lambda: self.time, regions=regions, conditions=conditions)
        self.endpoint = Endpoint(self.account, MODELS)
        self.session = Session(self.endpoint)
        self.waited: list[float] = []
        self.calls = Calls(sleep=self.waited.append, random=Random(0), session=self.session)

    def client(self, service: str, region: str = "us-east-1") -> Any:
        return self.calls.client(service, region)

    def template(self, name: str, *, region: str = "us-east-1", **data: Any) -> None:
        data = {"ImageId": "ami-0123", **data}
        self.client("ec2", region).create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)

    def group(
        self, name: str, tags: Mapping[str, str] = DISCOVERED, *, region: str = "us-east-1", instance_type: str = "", **settings: Any
    ) -> None:
        """Create a group in one zone, of ``instance_type`` or with the settings ``settings``."""
        if instance_type:
            self.template(name, region=region, InstanceType=instance_type)
            settings["LaunchTemplate"] = {"LaunchTemplateName": name, "Version": "$Latest"}
        listed = [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()]
        parameters = {"MinSize": 0, "MaxSize": 5, "AvailabilityZones": [f"{region}a"], "NewInstancesProtectedFromScaleIn": True, **settings}
        self.client("autoscaling", region).create_auto_scaling_group(AutoScalingGroupName=name, Tags=listed, **parameters)

    def discovery(
        self, cluster: str = CLUSTER, *, groups: tuple[str, ...] = (), tags: Mapping[str, str] | None = None, **settings: Any
    ) -> Discovery:
        now: Callable[[], float] = lambda: self.time  # noqa: E731
        return Discovery(self.calls, Scope(cluster, groups, tags or {}), regions=self.regions, now=now, **settings)

    def discover(self, cluster: str = CLUSTER, **settings: Any) -> DiscoveryResult:
        discovery = self.discovery(cluster, **settings)
        try:
            return discovery.discover()
        finally:
            discovery.close()


def pool(discovered: DiscoveryResult, name: str) -> AwsPool:
    """The pool of that name."""
    return next(aws_pool for aws_pool in discovered.pools if aws_pool.pool.name == name)


def reasons(discovered: DiscoveryResult) -> dict[str, str]:
    """Why groups were skipped, by name."""
    return {skipped.object.rpartition("/")[2]: skipped.reason for skipped in discovered.set_aside}
