"""Removing a machine in steps: close it, check it again, wait for its replacement, evict its pods, end it by its id.

Until the machine is being ended every step can be undone: the node is opened again and nothing is lost.
"""

from gpuscaler.lifecycle.termination.eviction_answers import EvictionRefused, hear
from gpuscaler.lifecycle.termination.removing import Departure, is_marked, take_leave
from gpuscaler.lifecycle.termination.starting import begin, give_up

__all__ = ["Departure", "EvictionRefused", "begin", "give_up", "hear", "is_marked", "take_leave"]
