"""Resources that machines were promised to have and that no open node shows."""

from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, pool

from gpuscaler.lifecycle.registration.unshown_resources import SHOWN_SECONDS, find_unshown
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy

EFA = "vpc.amazonaws.com/efa"


def test_nodes_of_others_do_not_show_what_machines_of_a_pool_lack() -> None:
    bare = offering()
    kind = replace(bare, allocatable={**bare.allocatable, EFA: 1})
    cluster = Cluster.of([node("n", bare, created=NOW - SHOWN_SECONDS)])

    assert find_unshown(cluster, Policy((pool(kind),)), NOW, unlisted=frozenset()) == {(kind.pool, kind.instance_type): frozenset({EFA})}
    assert find_unshown(cluster, Policy((pool(kind),)), NOW, unlisted=frozenset({"n"})) == {}
