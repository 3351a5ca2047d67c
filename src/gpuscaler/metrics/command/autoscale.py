"""The controller of ``gpuscaler.io/autoscale`` as ``gpuscaler metrics`` runs it: with a Lease and a limit of its own."""

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
#: Requests a second, and at once: autoscalers of a whole cluster change when rules do.
_QPS, _BURST = 10.0, 50


class ReadySource(Source, Protocol):
    @property
    def trouble(self) -> str:
        """Empty once everything can be answered."""
        ...


def autoscaling(
    client: Client,
    source: ReadySource,
    *,
    namespace: str,
    identity: str,
    clock: Callable[[], float],
    wall: Callable[[], float],
    random: Random,
) -> AutoscaleController:
    """With its Lease in ``namespace``, held as ``identity``, which nobody else ever has. ``clock`` is monotonic, ``wall`` Unix time."""

    def served() -> set[str] | None:
        return None if source.trouble else {one.metric for one in source.custom_metrics() if one.group_resource == "pods"}

    own = replace(client, limit=RateLimit(_QPS, _BURST))
    election = LeaderElection(own, name=LEASE, namespace=namespace, identity=identity, clock=clock, wall=wall, random=random)
    return AutoscaleController(
        own.fenced(election.fence),
        election=election,
        events=EventRecorder(replace(own, limit=RateLimit(_QPS, _BURST)), wall, component="gpuscaler-metrics", instance=identity),
        served=served,
        clock=clock,
        random=random,
    )
