"""Requests that are sent again: withdrawals that the cloud has not confirmed, and orders whose answer was lost."""

from gpuscaler.lifecycle.reconcile.facts import Facts
from gpuscaler.model.holds import BUYING
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import Ledger, Order, Withdrawal

#: An order whose answer was lost is sent again at this interval, in seconds.
RESEND_SECONDS = 5.0
#: A withdrawal that the cloud has not confirmed is repeated after the first time; the pause doubles up to the second one, in seconds.
WITHDRAW_SECONDS, WITHDRAW_MOST = 15.0, 600.0


def withdrawals_due(ledger: Ledger, now: float) -> tuple[str, ...]:
    """Return the tokens of orders whose withdrawal is sent again now."""
    return tuple(withdrawal.token for withdrawal in ledger.withdrawals if now >= withdrawal.tried + pause(withdrawal))


def orders_due(ledger: Ledger, facts: Facts, now: float) -> tuple[Order, ...]:
    """Return the orders to send again; if the first request never arrived, the repeated one is a new purchase."""
    resends = facts.waits.keeps_tokens and facts.holds.of(BUYING, now) is None
    return tuple(order for order in ledger.orders if resends and is_due(order, now))


def is_due(order: Order, now: float) -> bool:
    """Whether an order whose answer was lost is due to be sent again."""
    return order.state == ledger.DOUBTFUL and now >= order.since + RESEND_SECONDS


def pause(withdrawal: Withdrawal) -> float:
    """Return how long after its last attempt a withdrawal is sent again, in seconds."""
    return min(WITHDRAW_SECONDS * 2.0 ** (withdrawal.times - 1), WITHDRAW_MOST) if withdrawal.times else 0.0
