"""NodePorts."""

import pytest
from tests.planning.building import bare_node, pod, spec
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.labels import NO_LABELS
from gpuscaler.model.pods import HostPort


@pytest.mark.parametrize(
    ("taken", "wanted", "free"),
    [
        (HostPort(80), HostPort(80), False),
        (HostPort(80), HostPort(81), True),
        (HostPort(80), HostPort(80, "UDP"), True),
        (HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.2"), True),
        (HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.1"), False),
        (HostPort(80, ip="10.0.0.1"), HostPort(80), False),
        (HostPort(80), HostPort(80, ip="10.0.0.1"), False),
        (HostPort(80, ip=""), HostPort(80, ip="10.0.0.1"), False),
        (HostPort(80, protocol=""), HostPort(80, "TCP"), False),
        (HostPort(0), HostPort(0), True),
    ],
)
def test_host_ports_conflict_on_the_same_protocol_and_address_or_the_wildcard(taken: HostPort, wanted: HostPort, *, free: bool) -> None:
    here = room(bare_node("a"), bare_node("b"), pod("p", spec(host_ports=(taken,)), on="a"))
    assert rows(here, spec(host_ports=(wanted,))) == (["a", "b"] if free else ["b"])


def test_a_node_takes_one_copy_of_a_pod_with_a_host_port() -> None:
    here = room(bare_node("a"))
    assert here.capacity(spec(host_ports=(HostPort(80),)), NO_LABELS).tolist() == [1]


def test_a_host_port_is_taken_until_the_last_pod_with_it_is_removed() -> None:
    here = room(bare_node("a"), pod("p", spec(host_ports=(HostPort(80, ip="10.0.0.1"),)), on="a"))
    wanted = spec(host_ports=(HostPort(80), HostPort(443)))
    assert rejection(here, wanted, "a") == ("NodePorts", "host port 80/TCP is taken")
    here.remove(spec(host_ports=(HostPort(80, ip="10.0.0.1"),)), NO_LABELS, 0)
    assert rows(here, wanted) == ["a"]
    here.place(wanted, NO_LABELS, 0)
    assert rows(here, wanted) == []
