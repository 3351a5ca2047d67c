"""All rules about files, in the order of their ids."""

from gpuscaler.doctor.manifests import syntax
from gpuscaler.doctor.manifests.fields import budgets, sizes, unknown, values
from gpuscaler.doctor.manifests.fields import workloads as contradictions
from gpuscaler.doctor.manifests.groups import eksctl, images, machines, private_clusters, protection, stacks, tags
from gpuscaler.doctor.manifests.linting import Lint
from gpuscaler.doctor.manifests.objects import (
    autoscaler_flags,
    charts,
    flags,
    former,
    levels,
    places,
    quoting,
    references,
    rights,
    rules,
    versions,
    workloads,
)

LINTS: tuple[Lint, ...] = (
    *syntax.LINTS,
    *levels.LINTS,
    *eksctl.LINTS,
    *versions.LINTS,
    *quoting.LINTS,
    *workloads.LINTS,
    *machines.LINTS,
    *images.LINTS,
    *tags.LINTS,
    *protection.LINTS,
    *places.LINTS,
    *flags.LINTS,
    *autoscaler_flags.LINTS,
    *rules.LINTS,
    *charts.LINTS,
    *former.LINTS,
    *rights.LINTS,
    *references.LINTS,
    *private_clusters.LINTS,
    *unknown.LINTS,
    *values.LINTS,
    *sizes.LINTS,
    *contradictions.LINTS,
    *stacks.LINTS,
    *budgets.LINTS,
)
