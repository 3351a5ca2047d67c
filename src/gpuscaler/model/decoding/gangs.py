"""Objects that declare gangs: pod groups of various schedulers, JobSets, native Workloads."""

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.wire import Int32, Metadata, Wire, WireObject, require_name
from gpuscaler.model.workloads import PodGroup


class GroupSpec(Wire):
    min_member: Int32 | None = None


class WirePodGroup(WireObject):
    metadata: Metadata | None = None
    spec: GroupSpec | None = None


def read_coscheduling_group(wire: WirePodGroup, interner: Interner) -> PodGroup:
    return _group(wire, interner, "coscheduling")


def read_volcano_group(wire: WirePodGroup, interner: Interner) -> PodGroup:
    return _group(wire, interner, "volcano")


def _group(wire: WirePodGroup, interner: Interner, source: str) -> PodGroup:
    name, metadata = require_name(wire.metadata)
    smallest = (wire.spec.min_member if wire.spec else None) or 0
    return PodGroup(source, interner.text(metadata.namespace or "default"), name, max(0, smallest))


class JobSpec(Wire):
    parallelism: Int32 | None = None


class JobTemplate(Wire):
    spec: JobSpec | None = None


class ReplicatedJob(Wire):
    replicas: Int32 | None = None
    template: JobTemplate | None = None


class JobSetSpec(Wire):
    replicated_jobs: list[ReplicatedJob] | None = None


class WireJobSet(WireObject):
    metadata: Metadata | None = None
    spec: JobSetSpec | None = None


def read_job_set(wire: WireJobSet, interner: Interner) -> PodGroup:
    """Decode a JobSet as a gang: the pods that all of its Jobs run at a time."""
    name, metadata = require_name(wire.metadata)
    members = 0
    for job in (wire.spec.replicated_jobs if wire.spec else None) or ():
        parallelism = job.template.spec.parallelism if job.template and job.template.spec else None
        members += max(0, 1 if job.replicas is None else job.replicas) * max(0, 1 if parallelism is None else parallelism)
    return PodGroup("jobset", interner.text(metadata.namespace or "default"), name, members)


class GangPolicy(Wire):
    min_count: Int32 | None = None


class GroupPolicy(Wire):
    gang: GangPolicy | None = None


class NativeGroup(Wire):
    name: str | None = None
    policy: GroupPolicy | None = None


class NativeSpec(Wire):
    pod_groups: list[NativeGroup] | None = None


class WireNativeWorkload(WireObject):
    metadata: Metadata | None = None
    spec: NativeSpec | None = None


def read_native_workload(wire: WireNativeWorkload, interner: Interner) -> list[PodGroup]:
    """Decode the pod groups of a native Workload, named ``workload/group``.

    A group without a gang policy is scheduled pod by pod: its minimum is 0. Each replica of a group is a separate gang, with the name
    ``workload/group/replica`` on its pods.
    """
    name, metadata = require_name(wire.metadata)
    namespace = interner.text(metadata.namespace or "default")
    return [
        PodGroup("workload", namespace, f"{name}/{group.name or ''}", max(0, _minimum_members(group.policy)))
        for group in (wire.spec.pod_groups if wire.spec else None) or ()
    ]


class NativeGroupSpec(Wire):
    scheduling_policy: GroupPolicy | None = None


class WireNativeGroup(WireObject):
    metadata: Metadata | None = None
    spec: NativeGroupSpec | None = None


def read_native_group(wire: WireNativeGroup, interner: Interner) -> PodGroup:
    """Decode a native PodGroup object, as in versions after v1alpha1."""
    name, metadata = require_name(wire.metadata)
    spec = wire.spec or NativeGroupSpec()
    minimum = _minimum_members(spec.scheduling_policy)
    return PodGroup("workload", interner.text(metadata.namespace or "default"), name, max(0, minimum))


def _minimum_members(policy: GroupPolicy | None) -> int:
    return (policy.gang.min_count if policy and policy.gang else None) or 0
