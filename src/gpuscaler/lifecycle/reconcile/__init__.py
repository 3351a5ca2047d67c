"""Reconcile: compare the cluster and the cloud's list with the memory, update the memory, and derive the acts that are due now."""

from gpuscaler.lifecycle.reconcile.facts import Facts, Reconciliation
from gpuscaler.lifecycle.reconcile.stages import reconcile
from gpuscaler.lifecycle.reconcile.urgency import is_urgent

__all__ = ["Facts", "Reconciliation", "is_urgent", "reconcile"]
