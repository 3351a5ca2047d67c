"""Clusters that exist: what runs there already must not be surprised."""

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import KOPS


def exists(description: Description) -> bool:
    """Whether the cluster exists before the files are applied. Files of kOps never create one."""
    return not description.cluster.create or description.tool == KOPS
