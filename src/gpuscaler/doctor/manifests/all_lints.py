"""All rules about files, in the order of their ids."""

from gpuscaler.doctor.manifests import levels, quoting, syntax, versions, workloads
from gpuscaler.doctor.manifests.groups import eksctl
from gpuscaler.doctor.manifests.linting import Lint

LINTS: tuple[Lint, ...] = (
    *syntax.LINTS,
    *levels.LINTS,
    *eksctl.LINTS,
    *versions.LINTS,
    *quoting.LINTS,
    *workloads.LINTS,
)
