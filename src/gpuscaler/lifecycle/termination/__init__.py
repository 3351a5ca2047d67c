"""Removing a machine in steps: taint its node, check it again, wait for its replacement, evict its pods, end the machine by its id.

Until the cloud is asked to end the machine, every step can be undone: the node is opened again.
"""

from gpuscaler.lifecycle.termination.eviction_answers import EvictionRefused, record_refusals
from gpuscaler.lifecycle.termination.removing import EndAnswered, RemovalFindings, continue_removals, is_marked
from gpuscaler.lifecycle.termination.starting import begin_removals, remove_overdue

__all__ = [
    "EndAnswered",
    "EvictionRefused",
    "RemovalFindings",
    "begin_removals",
    "continue_removals",
    "is_marked",
    "record_refusals",
    "remove_overdue",
]
