"""The controller of ``gpuscaler.io/autoscale`` in ``gpuscaler metrics``, with its own Lease and rate limit."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Protocol

from gpuscaler.kube.client import Client
from gpuscaler.kube.events import EventRecorder
from gpuscaler.kube.leases import LeaderElection
from gpuscaler.kube.rate import RateLimit
from gpuscaler.metrics.autoscale.controller import AutoscaleController
from gpuscaler.metrics.sources.values import Source

LEASE = "gpuscaler-autoscale"
#: Requests per second, and burst: when rules change, the autoscalers of a whole cluster may change.
_QPS, _BURST = 10.0, 50


class ReadySource(Source, Protocol):
    @property
    def trouble(self) -> str:
        """The current problem; empty once everything can be answered."""
        ...


def make_autoscale_controller(
    client: Client,
    source: ReadySource,
    *,
    namespace: str,
    identity: str,
    clock: Callable[[], float],
    wall: Callable[[], float],
    random: Random,
) -> AutoscaleController:
    """Create the controller. Its Lease is in ``namespace``; ``identity`` is unique. ``clock`` is monotonic, ``wall`` Unix time."""

    def served() -> set[str] | None:
        return (
            None
            if source.trouble
            else {metric_info.metric for metric_info in source.custom_metrics() if metric_info.group_resource == "pods"}
        )

    limited = replace(client, limit=RateLimit(_QPS, _BURST))
    election = LeaderElection(limited, name=LEASE, namespace=namespace, identity=identity, clock=clock, wall=wall, random=random)
    return AutoscaleController(
        limited.fenced(election.fence),
        election=election,
        events=EventRecorder(replace(limited, limit=RateLimit(_QPS, _BURST)), wall, component="gpuscaler-metrics", instance=identity),
        served=served,
        clock=clock,
        random=random,
    )
