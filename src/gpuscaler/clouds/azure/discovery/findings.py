"""Problems of a scale set or agent pool: settings that exclude an autoscaler, and settings that conflict with one. Pure.

Each is one sentence that names the field and says what to do. With what excludes one, the pool is set aside; the rest are warnings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.documents.resources import AVAILABILITY_SET, MACHINES, SCALE_SETS, SPOT, UNIFORM, AgentPool, ScaleSet, is_word
from gpuscaler.clouds.azure.documents.skus import Sku
from gpuscaler.clouds.azure.documents.usages import Usage, quota_name, quotas_of
from gpuscaler.model.taints import HARD_EFFECTS, Taint
from gpuscaler.model.well_known import ARRIVING_TAINT

#: Prefixes of labels and tags of pools that another autoscaler makes and deletes: gpu-provisioner of KAITO, and node auto-provisioning.
_OTHER_AUTOSCALERS: Final = {"kaito.sh/": "gpu-provisioner (KAITO)", "karpenter.sh/": "Karpenter", "karpenter.azure.com/": "Karpenter"}
_MODES: Final = ("System", "User")
#: Taints of pools that do not keep pods without GPUs away: their own of spot machines, and ours.
_NO_GUARD: Final = ("kubernetes.azure.com/scalesetpriority", ARRIVING_TAINT)
#: The taint that Azure's documentation gives to pools with GPUs.
_GUARD: Final = "sku=gpu:NoSchedule"


def conflict_of(resources: PoolResources) -> str:
    """Why the pool cannot be scaled, empty if it can."""
    conflicts = (*_pool_conflicts(resources.agent_pool), *_scale_set_conflicts(resources))
    return next(iter(conflicts), "")


def _pool_conflicts(agent_pool: AgentPool | None) -> Iterator[str]:
    if agent_pool is None:
        return
    if other := other_autoscaler(agent_pool):
        yield other
    if agent_pool.autoscaling:
        yield (
            "saw enableAutoScaling true, expected false: AKS's own autoscaler scales it, and two of them undo each other's work; "
            f"{_command(agent_pool, 'update', ' --disable-cluster-autoscaler')} switches it off"
        )
    if is_word(agent_pool.kind, AVAILABILITY_SET):
        yield (
            "saw type AvailabilitySet, expected VirtualMachineScaleSets or VirtualMachines: single machines of an availability set cannot "
            "be bought and ended; move its pods to a new pool"
        )
    elif agent_pool.kind not in (SCALE_SETS, MACHINES):
        yield f"saw type {agent_pool.kind}, expected VirtualMachineScaleSets or VirtualMachines"
    if not any(is_word(agent_pool.mode, mode) for mode in _MODES):
        yield f"saw mode {agent_pool.mode}, expected System or User"
    if agent_pool.windows:
        yield "saw osType Windows, expected Linux: pods with GPUs run on Linux"
    if is_word(agent_pool.scale_down_mode, "Deallocate"):
        yield (
            "saw scaleDownMode Deallocate, expected Delete: ended machines would stay as stopped ones that keep their quota and disks; "
            f"{_command(agent_pool, 'update', ' --scale-down-mode Delete')} changes it"
        )
    if agent_pool.market == SPOT and is_word(agent_pool.eviction, "Deallocate"):
        yield _deallocates("scaleSetEvictionPolicy")
    if is_word(agent_pool.power, "Stopped"):
        yield f"saw powerState Stopped, expected Running; {_command(agent_pool, 'start')} starts it"
    if is_word(agent_pool.state, "Deleting"):
        yield "it is being deleted"


def _command(agent_pool: AgentPool, act: str, option: str = "") -> str:
    """A command of the Azure CLI that changes the pool."""
    place = f"--resource-group {agent_pool.group} --cluster-name {agent_pool.cluster} --name {agent_pool.name}"
    return f"`az aks nodepool {act} {place}{option}`"


def other_autoscaler(agent_pool: AgentPool) -> str:
    """Why an agent pool is another autoscaler's, empty if it is not."""
    for where, names in (("label", agent_pool.labels), ("tag", agent_pool.tags)):
        for name in names:
            for prefix, owner in _OTHER_AUTOSCALERS.items():
                if name.replace("_", "/", 1).startswith(prefix):
                    return f"saw the {where} {name}, expected none of {owner}: it makes and deletes the pool for its own machines"
    return ""


def _scale_set_conflicts(resources: PoolResources) -> Iterator[str]:
    scale_set, agent_pool = resources.scale_set, resources.agent_pool
    if scale_set is None:
        return
    if is_word(scale_set.state, "Deleting"):
        yield "it is being deleted"
    if scale_set.windows:
        yield "saw osType Windows, expected Linux: pods with GPUs run on Linux"
    # AKS switches overprovisioning off; elsewhere it is on unless the scale set says otherwise.
    if scale_set.mode == UNIFORM and (scale_set.overprovision or (scale_set.overprovision is None and agent_pool is None)):
        yield (
            "saw overprovision true, expected false: Azure starts more machines than were asked for, which become nodes and vanish; "
            "set overprovision to false"
        )
    if SPOT in resources.markets and not is_word(scale_set.eviction, "Delete") and (agent_pool is None or scale_set.eviction):
        yield _deallocates("virtualMachineProfile.evictionPolicy")
    if scale_set.zone_rebalancing:
        yield (
            "saw resiliencyPolicy.automaticZoneRebalancingPolicy enabled, expected disabled: Azure ends machines with running pods to "
            "balance zones; disable it"
        )
    if scale_set.chooses_zones and not scale_set.zones:
        yield (
            "saw resiliencyPolicy.zoneAllocationPolicy without zones, expected zones: it is unknown where machines come; "
            "make a scale set for each zone"
        )
    if scale_set.spot_restore:
        yield "saw spotRestorePolicy enabled, expected disabled: Azure brings evicted machines back that were replaced already; disable it"
    if scale_set.sku_migration:
        yield (
            "saw skuProfile.automaticSkuMigrationPolicy enabled, expected disabled: Azure replaces machines with running pods by other "
            "sizes; disable it"
        )


def _deallocates(field: str) -> str:
    return (
        f"saw {field} Deallocate, expected Delete: evicted machines would stay as stopped ones that keep their quota and disks; "
        "it cannot be changed later, so make a new pool"
    )


def findings_of(resources: PoolResources, skus: Iterable[Sku], taints: Sequence[Taint], *, by_scale_set: bool) -> tuple[str, ...]:
    """Sentences, the most harmful first. ``taints`` are those of its nodes; ``by_scale_set`` says that its scale set is written."""
    listed = tuple(skus)
    return (
        *_way(resources, by_scale_set=by_scale_set),
        *(_agent_pool(resources.agent_pool, resources.scale_set) if resources.agent_pool is not None else ()),
        *(_replacements(resources.scale_set) if resources.scale_set is not None else ()),
        *_markets(resources, listed),
        *(_leftovers(resources.scale_set) if resources.scale_set is not None else ()),
        *_gpus(resources, listed, taints),
    )


def _way(resources: PoolResources, *, by_scale_set: bool) -> Iterator[str]:
    if resources.locked and by_scale_set:
        yield (
            "azure.api is vmss, but the node resource group is locked (nodeResourceGroupProfile.restrictionLevel ReadOnly), so Azure will "
            "refuse every write; set api to auto"
        )


def _agent_pool(agent_pool: AgentPool, scale_set: ScaleSet | None) -> Iterator[str]:
    if is_word(agent_pool.state, "Failed"):
        yield "its provisioningState is Failed: its machines run on, and each change makes AKS try to repair it; see its activity log"
    others = [text for text in agent_pool.taints if text.partition("=")[0].partition(":")[0] != ARRIVING_TAINT]
    if len(others) < len(agent_pool.taints):
        yield (
            f"its nodeTaints have {ARRIVING_TAINT}, which AKS puts back on nodes that were opened; {_with_taints(agent_pool, others)} "
            "removes it, and gpuscaler adds it itself to nodes that register"
        )
    wanted, actual = agent_pool.reservation_group, scale_set.reservation_group if scale_set is not None else agent_pool.reservation_group
    if wanted and not actual:
        yield (
            f"its capacityReservationGroupID is {wanted.rpartition('/')[2]}, but its scale set is in no such group, so nothing that is "
            "reserved is used: the group had no reservation when the pool was made; make the pool again"
        )
    if agent_pool.host_group:
        yield "its hostGroupID puts machines on dedicated hosts, which are paid for already; its prices are those of machines elsewhere"


def _replacements(scale_set: ScaleSet) -> Iterator[str]:
    if scale_set.repairs:
        yield "its automaticRepairsPolicy replaces machines that gpuscaler replaces as well; disable it"
    if scale_set.replaces_failed:
        yield "its resiliencyPolicy.resilientVMCreationPolicy replaces machines that are starting, under other names; disable it"
    if scale_set.upgrades:
        yield f"its {scale_set.upgrades} restarts or replaces machines with running pods; set upgradePolicy.mode to Manual"
    if scale_set.single_placement:
        yield (
            "its singlePlacementGroup is true: at most 100 machines, all in one hardware cluster, so Azure runs out of capacity sooner; "
            "set it to false"
        )


def _markets(resources: PoolResources, skus: Sequence[Sku]) -> Iterator[str]:
    scale_set, agent_pool = resources.scale_set, resources.agent_pool
    prices = {"spotMaxPrice": agent_pool.max_price if agent_pool is not None else None}
    if agent_pool is None and scale_set is not None:
        prices = {"billingProfile.maxPrice": scale_set.max_price}
    for field, price in prices.items():
        if price is not None and SPOT in resources.markets:
            yield f"its {field} is ${price:g}, above which nothing is granted and machines are evicted; set it to -1"
    if scale_set is None:
        return
    if scale_set.mix is not None:
        base, percentage = scale_set.mix
        yield f"Azure divides it between markets (priorityMixPolicy): the first {base} on demand, then {percentage} % of the rest"
    counts = sorted({sku.gpus for sku in skus})
    if len(scale_set.sizes) > 1 and len(counts) > 1:
        text = f"the sizes of its skuProfile have {', '.join(map(str, counts))} GPUs, and Azure chooses among them"
        yield f"{text}; make a separate scale set for each number"
    if SPOT in resources.markets and is_word(scale_set.strategy, "LowestPrice"):
        yield "the allocationStrategy LowestPrice gets the spot machines that are evicted most; set CapacityOptimized"


def _leftovers(scale_set: ScaleSet) -> Iterator[str]:
    """Disks, interfaces and addresses that outlive their machine: gpuscaler deletes none."""
    if scale_set.kept:
        text = f"its {', '.join(scale_set.kept)} is Detach"
        yield f"{text}: each ended machine leaves something that is billed or takes an address; set Delete"


def _gpus(resources: PoolResources, skus: Sequence[Sku], taints: Sequence[Taint]) -> Iterator[str]:
    agent_pool = resources.agent_pool
    if agent_pool is None or not any(sku.gpus for sku in skus):
        return
    if agent_pool.gpu_instance_profile:
        yield (
            f"its gpuInstanceProfile {agent_pool.gpu_instance_profile} divides each GPU; GPUs count as whole ones until a node shows parts"
        )
    if is_word(agent_pool.gpu_driver, "None"):
        yield "its gpuProfile.driver is None: its nodes offer no GPUs unless the GPU Operator installs a driver"
    if not _are_guarded(taints):
        yield f"its nodes have GPUs and no taint, so pods without GPUs take their room; {_guard(agent_pool)} adds one"


def taint_advice(resources: PoolResources, taints: Sequence[Taint]) -> str:
    """What to do about nodes that register without the arriving taint; ``taints`` are those of the pool's nodes.

    Source: AKS, "Use node taints": taints of a pool are only changed with AKS's API, and initialization taints only for a whole cluster.
    """
    agent_pool = resources.agent_pool
    if agent_pool is None:
        return "add it to the kubelet's flag --register-with-taints in the scale set's custom data"
    text = "a pool of AKS cannot have this taint, since AKS puts taints of a pool back on nodes; gpuscaler adds it within ten seconds"
    return text if _are_guarded(taints) else f"{text}. {_guard(agent_pool)} keeps at least pods without GPUs off"


def _are_guarded(taints: Iterable[Taint]) -> bool:
    """Whether taints keep pods without GPUs away."""
    return any(taint.effect in HARD_EFFECTS and taint.key not in _NO_GUARD for taint in taints)


def _guard(agent_pool: AgentPool) -> str:
    return _with_taints(agent_pool, [*agent_pool.taints, _GUARD])


def _with_taints(agent_pool: AgentPool, taints: Sequence[str]) -> str:
    """The command that gives the pool exactly these taints."""
    return _command(agent_pool, "update", f' --node-taints "{",".join(taints)}"')


def quota_findings(skus: Iterable[Sku], markets: Iterable[str], usages: Mapping[str, Usage]) -> tuple[str, ...]:
    """A sentence for each quota without room for one machine more. A pool is not set aside for it: a quota can be raised."""
    listed = tuple(skus)
    sentences: dict[str, None] = {}
    for market in markets:
        for sku in listed:
            for usage in quotas_of(sku, market, usages):
                if usage.left >= sku.vcpus:
                    continue
                name = quota_name(usage)
                if usage.limit < sku.vcpus:
                    text = f"the quota {name} is {usage.limit} vCPUs, and one {sku.name} has {sku.vcpus}, so none can be bought"
                else:
                    text = f"the quota {name} has {usage.left} of {usage.limit} vCPUs left, and one {sku.name} has {sku.vcpus}"
                sentences[f"{text}; request a higher quota"] = None
    return tuple(sentences)
