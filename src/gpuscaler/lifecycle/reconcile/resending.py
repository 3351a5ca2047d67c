"""What is sent once more: withdrawals that the cloud has not confirmed, and orders whose answer was lost."""

from gpuscaler.lifecycle.reconcile.looks import Facts
from gpuscaler.model.holds import BUYING
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import Ledger, Order, Withdrawal

#: An order whose answer was lost is sent again this often, in seconds.
RESEND_SECONDS = 5.0
#: A withdrawal that the cloud has not confirmed is sent again after so long, ever more rarely up to the second, in seconds.
WITHDRAW_SECONDS, WITHDRAW_MOST = 15.0, 600.0


def withdrawals_due(book: Ledger, now: float) -> tuple[str, ...]:
    """The tokens of orders of which the cloud is told once more that nothing more is wanted."""
    return tuple(one.token for one in book.withdrawals if now >= one.tried + pause(one))


def orders_due(book: Ledger, facts: Facts, now: float) -> tuple[Order, ...]:
    """Orders that are sent again: one that may never have arrived is a new purchase then."""
    resends = facts.waits.keeps_tokens and facts.holds.of(BUYING, now) is None
    return tuple(one for one in book.orders if resends and is_due(one, now))


def is_due(order: Order, now: float) -> bool:
    """Whether an order whose answer was lost is to be sent again."""
    return order.state == ledger.DOUBTFUL and now >= order.since + RESEND_SECONDS


def pause(one: Withdrawal) -> float:
    """How long after it was last sent a withdrawal is sent again."""
    return min(WITHDRAW_SECONDS * 2.0 ** (one.times - 1), WITHDRAW_MOST) if one.times else 0.0
