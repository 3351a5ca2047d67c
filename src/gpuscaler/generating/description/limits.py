"""What AWS and its tools refuse: names that are too long or taken, labels that no node may have, more tags than there is room for.

Sources, 2026-11-26: the EKS API reference, CreateNodegroup and Taint (63 characters of names and keys, no empty values of labels); eksctl's
``validation.go`` (letters, digits and '-'); the CloudFormation user guide (128 characters of a stack's name); the user guide of EC2 Auto
Scaling, "Tag Auto Scaling groups and instances" (50 tags, 128 characters of a key); aws/containers-roadmap#1451 (prefixes of labels).
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from gpuscaler.clouds.aws.templates.user_data import may_set
from gpuscaler.clouds.discovery.hints import LABEL
from gpuscaler.generating.description.resolved import NodeGroup
from gpuscaler.generating.description.settings import EKSCTL, KOPS, GpuPoolSettings
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.model.well_known import OWN_PREFIX

#: EKS allows 30 managed node groups in a cluster, unless its owner asked for more (EKS user guide, "service quotas", 2026-11-26).
MANAGED_GROUPS: Final = 30
_EKS_NAME: Final = "[A-Za-z0-9][A-Za-z0-9-]*"
_EKS_PREFIX: Final = "eks.amazonaws.com/"
#: Characters of a group's name, and of the keys of labels and taints, in EKS. The name is the value of a label with kOps, too.
_GROUP_NAME = _EKS_KEY = 63
#: Characters of the names of cluster and group together: eksctl's stack is called ``eksctl-CLUSTER-nodegroup-GROUP``.
_STACK_NAME: Final = 128 - len("eksctl--nodegroup-")
#: Characters of a key that a tag has room for. The prefix of taints is as long as that of labels.
_TAG_KEY: Final = 128 - len(LABEL)
#: Labels and taints each take a tag of 50; EKS, eksctl, kOps and gpuscaler set up to 20.
_TAGS: Final = 30


def check_cluster_name(at: Cursor, tool: str, name: str) -> None:
    """Report a name that EKS or eksctl refuses."""
    if tool != KOPS and not re.fullmatch(_EKS_NAME, name):
        at.wrong("the name of an EKS cluster: letters, digits and '-'; only names of kOps clusters include a domain")


def check_pool(
    at: Cursor, pool: GpuPoolSettings, groups: Sequence[NodeGroup], *, before: Iterable[NodeGroup], tool: str, cluster: str
) -> None:
    """Report what is wrong with the ``groups`` of a pool, of which there are others ``before``."""
    _check_names(at, pool, groups, before, min(_GROUP_NAME, _STACK_NAME - len(cluster)) if tool == EKSCTL else _GROUP_NAME)
    eks = tool != KOPS
    room = _EKS_KEY if eks else _TAG_KEY
    for key, value in pool.labels.items():
        label = at.descend("labels", key)
        _check_key(label, "label", key, room)
        if eks and (key.startswith(_EKS_PREFIX) or not may_set(key)):
            label.add_problem(f'saw the label key "{key}", which EKS does not give to nodes, expected one of your own; rename it')
        if eks and not value:
            label.add_problem(f'saw the label "{key}" without a value, which EKS refuses, expected one such as "true"; add it')
    for item, taint in zip(at.descend("taints").items() if at.has("taints") else (), pool.taints, strict=False):
        _check_key(item, "taint", taint.key, room)
    tags = len(pool.labels) + len(pool.taints)
    if tags > _TAGS:
        at.add_problem(
            f"saw {tags} labels and taints, expected at most {_TAGS}: each takes a tag of its group, which can have 50; remove some"
        )


def _check_key(at: Cursor, kind: str, key: str, room: int) -> None:
    if key.startswith(OWN_PREFIX):
        at.add_problem(f'saw the {kind} key "{key}", expected one of your own: gpuscaler sets those of {OWN_PREFIX}; remove it')
    if len(key) > room:
        at.add_problem(f'saw the {kind} key "{key}" with {len(key)} characters, expected at most {room}; shorten it')


def _check_names(at: Cursor, pool: GpuPoolSettings, groups: Sequence[NodeGroup], before: Iterable[NodeGroup], room: int) -> None:
    longest = max((group.name for group in groups), key=len, default="")
    if len(longest) > room:
        at.descend("name").add_problem(
            f"saw {pool.name}, of which a group would be called {longest}, with {len(longest)} characters, expected at most {room}; "
            f"shorten the name by {len(longest) - room}"
        )
    others = {group.name: group.pool for group in before}
    taken = next((group.name for group in groups if group.name in others), None)
    if taken is not None:
        at.descend("name").add_problem(
            f"saw the pools {others[taken]} and {pool.name}, both of which would have a group called {taken}, "
            "expected names of groups once each; rename one"
        )
