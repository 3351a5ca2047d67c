"""A look at the cluster and at the cloud's list: what it changes in the memory, and what is to be done now."""

from gpuscaler.lifecycle.reconcile.looks import Facts, Look
from gpuscaler.lifecycle.reconcile.stages import look
from gpuscaler.lifecycle.reconcile.urgency import is_urgent

__all__ = ["Facts", "Look", "is_urgent", "look"]
