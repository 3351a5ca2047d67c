"""Giving a machine back in steps: close it, look again, wait for what replaces it, evict its pods, end it by its id.

Until the machine is being ended every step can be undone: the node is opened again and nothing is lost.
"""

from gpuscaler.planning.leaving.beginning import begin, give_up
from gpuscaler.planning.leaving.going import Departure, is_marked, take_leave
from gpuscaler.planning.leaving.hearing import Refusal, hear

__all__ = ["Departure", "Refusal", "begin", "give_up", "hear", "is_marked", "take_leave"]
