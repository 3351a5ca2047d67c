"""Compares words in AWS's answers by their letters alone.

Many fields that hold a market, a state or a kind are free strings of the API: the model lists no values, and AWS's own pages spell
one word in several ways (``MarketType`` is ``OnDemand`` in the user guide of LaunchInstances, ``on-demand`` in EC2's pages). Words are
therefore compared without case, dashes, underscores and blanks.
"""

from collections.abc import Iterable
from typing import Final

_SEPARATORS: Final = str.maketrans("", "", "-_ ")
#: Lifecycle states of a group's machines, as EC2 Auto Scaling's API reference spells them ("LifecycleState").
LIFECYCLES: Final = (
    "Pending",
    "Pending:Wait",
    "Pending:Proceed",
    "Quarantined",
    "InService",
    "Terminating",
    "Terminating:Wait",
    "Terminating:Proceed",
    "Terminating:Retained",
    "Terminated",
    "Detaching",
    "Detached",
    "EnteringStandby",
    "Standby",
    "ReplacingRootVolume",
    "ReplacingRootVolume:Wait",
    "ReplacingRootVolume:Proceed",
    "RootVolumeReplaced",
    "Warmed:Pending",
    "Warmed:Pending:Wait",
    "Warmed:Pending:Proceed",
    "Warmed:Pending:Retained",
    "Warmed:Terminating",
    "Warmed:Terminating:Wait",
    "Warmed:Terminating:Proceed",
    "Warmed:Terminating:Retained",
    "Warmed:Terminated",
    "Warmed:Stopped",
    "Warmed:Running",
    "Warmed:Hibernated",
)
#: Processes of a group that may be suspended ("ProcessType").
PROCESSES: Final = (
    "Launch",
    "Terminate",
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "ReplaceUnhealthy",
    "ScheduledActions",
)


def is_same_word(word: object, other: str) -> bool:
    """Whether ``word`` of a reply is ``other``, in any spelling."""
    return isinstance(word, str) and _plain(word) == _plain(other)


def respelled(word: object, words: Iterable[str]) -> str:
    """``word`` of a reply as ``words`` spell it; unchanged if it is none of them, empty if it is not text."""
    text = word if isinstance(word, str) else ""
    return next((candidate for candidate in words if _plain(candidate) == _plain(text)), text)


def _plain(word: str) -> str:
    return word.translate(_SEPARATORS).lower()
