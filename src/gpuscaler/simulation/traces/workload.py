"""Jobs of a trace as Kubernetes pods, and pools that can serve parts of GPUs."""

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.labels import NO_LABELS
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.taints import Toleration
from gpuscaler.model.well_known import GPU_PRODUCT
from gpuscaler.simulation.traces.traces import Job, Trace

GPU = "nvidia.com/gpu"
#: Thousandths of GPUs: 1000 per device; a request of at most 1000 sits on one device, one of 1000 k takes k whole devices.
NAMESPACE = "trace"

#: The controller of every pod of a job. They are Jobs: none is disrupted unless the cost of moving it is given.
OWNER = Owner(kind="Job", name="trace")
#: The toleration that the admission plug-in ExtendedResourceToleration adds to pods that ask for GPUs: many GPU pools have this taint.
GPU_TOLERATION = Toleration(key=GPU, operator="Exists", effect="NoSchedule")


class Shaping(Struct, frozen=True, gc=False):
    """How jobs become pods.

    ``gpu_model`` is "ignore" (any GPU serves), "strict" (the trace's model is the product label) or a mapping from the trace's model to the
    product labels that serve it. ``cpu_per_gpu`` (millicores) and ``memory_per_gpu`` (bytes) are requested if the trace has no request; a
    job without GPUs counts as one GPU there. ``restart_cost`` (seconds) is the work lost by moving a pod, as declared for every pod; with
    None no pod is ever moved.
    """

    gpu_model: str | Mapping[str, tuple[str, ...]] = "ignore"
    cpu_per_gpu: int | None = None
    memory_per_gpu: int | None = None
    restart_cost: float | None = None


class UnmappedModelsError(ValueError):
    """GPU models of a trace that are missing from the mapping."""

    def __init__(self, models: tuple[str, ...]) -> None:
        super().__init__(f"the trace's GPU models {', '.join(models)} are not in the mapping")
        self.models = models


class Member(Struct, frozen=True, gc=False):
    """One pod of a job or a service, before it exists. ``gpus`` is its share of GPUs as a number.

    ``user`` and ``namespace`` are its owner according to the trace, empty if unknown; they affect no decision.
    """

    name: str
    spec: PodSpec
    options: PodOptions
    submit: float
    duration: float
    gpus: float
    owner: Owner = OWNER
    user: str = ""
    namespace: str = ""

    @property
    def key(self) -> str:
        return f"{NAMESPACE}/{self.name}"

    @property
    def movable(self) -> bool:
        """Whether its owner lets an autoscaler move it: a service's replica, or a job's pod with a declared restart cost."""
        return self.options.restart_cost is not None or (self.owner.kind != OWNER.kind and not self.options.gang)

    def pod(self, *, created: float, node: str = "", nominated: str = "", started: float = 0.0, unschedulable_since: float = 0.0) -> Pod:
        """The pod as the API would show it: pending and found unschedulable, nominated, or running on ``node``."""
        return Pod(
            namespace=NAMESPACE,
            name=self.name,
            spec=self.spec,
            labels=NO_LABELS,
            uid=self.name,
            node_name=node,
            nominated_node=nominated,
            phase="Running" if node else "Pending",
            created=created,
            started=started,
            unschedulable=None if node else True,
            unschedulable_since=0.0 if node else unschedulable_since or created,
            owner=self.owner,
            options=self.options,
        )


def members(trace: Trace, shaping: Shaping) -> tuple[Member, ...]:
    """Every pod of a trace, in order of submission. Raises :class:`UnmappedModelsError` if the mapping is incomplete."""
    if not isinstance(shaping.gpu_model, str):
        missing = {model for job in trace.jobs for model in job.gpu_models} - set(shaping.gpu_model)
        if missing:
            raise UnmappedModelsError(tuple(sorted(missing)))
    specs: dict[Job, PodSpec] = {}
    fractional = trace.fractional
    options = PodOptions(restart_cost=shaping.restart_cost)
    result: list[Member] = []
    for job in trace.jobs:
        # Everything that the specification depends on, as a key: thousands of jobs share a few hundred specifications.
        shape = replace(job, id="", submit=0.0, duration=0.0, pods=1, user="", namespace="")
        spec = specs.get(shape)
        if spec is None:
            spec = specs[shape] = spec_of(job, shaping, fractional=fractional)
        result.extend(_members(job, spec, options))
    return tuple(result)


def _members(job: Job, spec: PodSpec, options: PodOptions) -> list[Member]:
    owner = (OWNER, job.user, job.namespace)
    if job.pods == 1:
        return [Member(job.id, spec, options, job.submit, job.duration, job.gpu_share, *owner)]
    gang = replace(options, gang=job.id, gang_size=job.pods, gang_source="trace")
    return [Member(f"{job.id}#{number}", spec, gang, job.submit, job.duration, job.gpu_share, *owner) for number in range(job.pods)]


def spec_of(job: Job, shaping: Shaping, *, fractional: bool, restart_policy: str = "Never") -> PodSpec:
    """The specification of a pod of ``job``. ``fractional``: GPUs are requested in thousandths, as everything in such a run."""
    gpus = max(1, job.gpus)
    cpu = job.cpu_milli if job.cpu_milli is not None else (shaping.cpu_per_gpu or 0) * gpus
    memory = job.memory if job.memory is not None else (shaping.memory_per_gpu or 0) * gpus
    requests = {"cpu": cpu, "memory": memory}
    requests[GPU_MILLI if fractional else GPU] = job.gpus * (job.gpu_milli if fractional else 1)
    requests = {name: amount for name, amount in sorted(requests.items()) if amount}
    products = _products(job, shaping)
    spec = PodSpec(
        digest="",
        namespace=NAMESPACE,
        requests=requests,
        node_affinity=products,
        tolerations=(GPU_TOLERATION,) if job.gpus else (),
        priority=job.priority,
        restart_policy=restart_policy,
    )
    digest = hashlib.blake2b(msgspec.json.encode(spec), digest_size=16).hexdigest()
    return replace(spec, digest=digest)


def _products(job: Job, shaping: Shaping) -> NodeSelector | None:
    """The node affinity for a job's GPU models."""
    if shaping.gpu_model == "ignore" or not job.gpu_models or not job.gpus:
        return None
    if isinstance(shaping.gpu_model, str):
        products = job.gpu_models
    else:
        products = tuple(sorted({product for model in job.gpu_models for product in shaping.gpu_model[model]}))
    return NodeSelector((NodeSelectorTerm((Requirement(GPU_PRODUCT, "In", products),)),))


def without_spot(policy: Policy) -> tuple[Policy, int]:
    """The same pools without their spot offerings, and the number of those.

    Without interruptions spot machines would make every result too good; they are added when the simulated cloud takes them away.
    """
    pools = tuple(
        replace(pool, offerings=tuple(offering for offering in pool.offerings if offering.market != "spot")) for pool in policy.pools
    )
    dropped = sum(len(pool.offerings) for pool in policy.pools) - sum(len(pool.offerings) for pool in pools)
    return replace(policy, pools=tuple(pool for pool in pools if pool.offerings)), dropped


def with_gpu_milli(policy: Policy) -> Policy:
    """The same pools, with machines that offer thousandths of GPUs beside whole ones."""
    return replace(policy, pools=tuple(_with_gpu_milli(pool) for pool in policy.pools))


def _with_gpu_milli(pool: Pool) -> Pool:
    def with_milli(offering: Offering) -> Offering:
        gpus = offering.allocatable.get(GPU, 0)
        if not gpus:
            return offering
        return replace(offering, allocatable={**offering.allocatable, GPU_MILLI: 1000 * gpus})

    return replace(pool, offerings=tuple(with_milli(offering) for offering in pool.offerings))
