"""Reading a live cluster once: its objects, and the ledger of a controller that runs there."""

from typing import NamedTuple

from gpuscaler.control.loop.store import MemoryStore, StoreError
from gpuscaler.control.process.expander import PriorityExpander
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Forbidden
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.snapshot import snapshot
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.cluster import Cluster


class ObservedCluster(NamedTuple):
    """A live cluster; ``notes`` name the facts about the cluster that could not be read and that a plan therefore lacks."""

    cluster: Cluster
    memory: Memory
    notes: tuple[str, ...]
    expander: PriorityExpander


async def read_cluster(access: Access, namespace: str) -> ObservedCluster:
    """Read everything. The client withholds writes."""
    async with HttpTransport(access) as transport:
        client = Client(transport, dry_run=True)
        listed = await snapshot(client)
        notes = [f"no permission to read {name}: planned without them" for name in listed.withheld]
        store = MemoryStore(client, namespace=namespace)
        try:
            memory = await store.load()
        except (Forbidden, StoreError) as error:
            notes.append(f"{store.place}: {error}; planned without the controller's ledger")
            memory = Memory()
        ordered = len(memory.ledger.coming)
        if ordered:
            notes.append(f"{store.place}: {ordered} {'machine is' if ordered == 1 else 'machines are'} on the way")
        expander = PriorityExpander(client)
        await expander.poll()
        return ObservedCluster(listed.cluster, memory, tuple(notes), expander)
