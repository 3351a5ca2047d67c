"""Agent pools and scale sets as checks see them, checks that say what was not read, and commands of the Azure CLI."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import ACCOUNT, Evidence
from gpuscaler.doctor.findings import Finding, Unchecked

CLUSTER, AGENT_POOL, SCALE_SET, SKU, USAGE = (
    "azure/ManagedCluster",
    "azure/AgentPool",
    "azure/ScaleSet",
    "azure/Sku",
    "azure/Usage",
)
SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Machines:
    """An agent pool or a scale set."""

    document: Document

    @property
    def name(self) -> str:
        return self.document.text("name")

    @property
    def title(self) -> str:
        """Its kind, and its name in its cluster or resource group."""
        return self.name

    @property
    def subscription(self) -> str:
        return self.document.text("Subscription")

    @property
    def group(self) -> str:
        """Its resource group; of an agent pool, that of its cluster."""
        return self.document.text("ResourceGroup")

    @property
    def location(self) -> str:
        return self.document.text("Location")

    @property
    def cluster(self) -> str:
        """The AKS cluster that it belongs to, empty without one."""
        return self.document.text("Cluster")

    @property
    def adopted(self) -> bool:
        """Whether gpuscaler takes it for a pool, unless one of its settings excludes that."""
        return self.document.flag("Adopted")

    @property
    def has_gpus(self) -> bool:
        return self.document.flag("HasGpus")

    @property
    def incomplete(self) -> str:
        """Why it could not be read, or its sizes are not known."""
        return self.document.text("Incomplete")

    @property
    def sizes(self) -> tuple[str, ...]:
        return self.document.texts("Sizes")

    @property
    def zones(self) -> tuple[str, ...]:
        return self.document.texts("Zones")

    @property
    def markets(self) -> tuple[str, ...]:
        return self.document.texts("Markets")

    @property
    def place(self) -> tuple[str, str]:
        return self.subscription, self.location

    def is_word(self, word: str, *path: str) -> bool:
        """Whether the property at ``path`` is ``word``: Azure's services spell such words in different cases."""
        return self.document.text("properties", *path).lower() == word.lower()

    def is_on(self, *path: str) -> bool:
        return self.document.flag("properties", *path)


class AzurePool(Machines):
    """A node pool of AKS."""

    __slots__ = ()

    @property
    def title(self) -> str:
        return f"AgentPool {self.cluster}/{self.name}"

    def update(self, *options: str) -> str:
        """The command that updates the pool: ``--mode User``."""
        place = ("--resource-group", self.group, "--cluster-name", self.cluster, "--name", self.name)
        return az("aks", "nodepool", "update", *place, *options, subscription=self.subscription)


class AzureScaleSet(Machines):
    """A scale set, which may be that of an agent pool."""

    __slots__ = ()

    @property
    def title(self) -> str:
        return f"ScaleSet {self.group}/{self.name}"

    @property
    def agent_pool(self) -> str:
        """The agent pool that AKS made it for, empty if there is none."""
        return self.document.text("AgentPool")

    @property
    def tags(self) -> dict[str, str]:
        return self.document.pairs("tags")

    def update(self, *options: str) -> str:
        """The command that updates the scale set: ``--set overprovision=false``."""
        return az("vmss", "update", "--resource-group", self.group, "--name", self.name, *options, subscription=self.subscription)

    def tag(self, key: str, value: str) -> str:
        """The command that sets a tag and leaves the others."""
        return az("tag", "update", "--resource-id", self.document.text("id"), "--operation", "Merge", "--tags", f"{key}={value}")


def az(*words: str, subscription: str = "") -> str:
    """A complete command of the Azure CLI."""
    return " ".join(map(shlex.quote, ("az", *words, *(("--subscription", subscription) if subscription else ()))))


def agent_pools(evidence: Evidence) -> Iterator[AzurePool]:
    """All node pools of the clusters."""
    return map(AzurePool, evidence.of(AGENT_POOL))


def scale_sets(evidence: Evidence) -> Iterator[AzureScaleSet]:
    """All scale sets of the node resource groups, and of the resource groups in the run file."""
    return map(AzureScaleSet, evidence.of(SCALE_SET))


def adopted(evidence: Evidence) -> Iterator[AzurePool | AzureScaleSet]:
    """What gpuscaler scales: node pools, and the scale sets that AKS does not manage."""
    yield from (pool for pool in agent_pools(evidence) if pool.adopted)
    yield from (scale_set for scale_set in scale_sets(evidence) if scale_set.adopted and not scale_set.agent_pool)


def settings_of(evidence: Evidence) -> tuple[Document, ...]:
    """The parts of the run file about subscriptions, one for each."""
    return evidence.of("azure/Settings")


def azure_check(
    id: str,  # noqa: A002 - as in Check
    title: str,
    kinds: tuple[str, ...],
    find: Callable[[Evidence], Iterable[Finding | Unchecked]],
) -> Check:
    """A check of pools and of ``kinds``, which says what of it could not be read, and looks at the rest."""
    needed = (CLUSTER, AGENT_POOL, SCALE_SET, *kinds)

    def partly(evidence: Evidence) -> Iterator[Finding | Unchecked]:
        for kind in needed:
            yield from in_part(id, title, evidence, kind)
        for machines in (*agent_pools(evidence), *scale_sets(evidence)):
            # The scale set of a node pool has the same sizes.
            if machines.incomplete and not machines.document.text("AgentPool") and not machines.document.text("Reason"):
                yield Unchecked(id, f"{title} of {machines.title}", machines.incomplete)
        yield from find(evidence)

    return Check(id, title, (ACCOUNT,), partly)
