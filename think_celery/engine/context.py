"""What the present code runs inside of: a turn, or a status hook; tools' threads and tasks inherit it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from think_celery.core.address import Address
from think_celery.errors import WrongContext

_turn: ContextVar[Address | None] = ContextVar("think_turn", default=None)
_hook: ContextVar[tuple[Address, str] | None] = ContextVar("think_hook", default=None)


@contextmanager
def inside_turn(address: Address) -> Iterator[None]:
    """Mark the block as part of an agent's turn."""
    token = _turn.set(address)
    try:
        yield
    finally:
        _turn.reset(token)


@contextmanager
def inside_hook(address: Address, submission_id: str) -> Iterator[None]:
    """Mark the block as the status hook of a submission."""
    token = _hook.set((address, submission_id))
    try:
        yield
    finally:
        _hook.reset(token)


def refuse_deadlock(address: Address, submission_id: str) -> None:
    """Refuse a wait that could never end (S 1.6).

    Raises:
        WrongContext: The wait is made inside a turn of the same agent, or in the status hook of that
            submission.
    """
    if _turn.get() == address:
        raise WrongContext(
            f"a turn of {address} waits for a submission of its own agent, "
            "which cannot start before the turn ends; submit without waiting"
        )
    if _hook.get() == (address, submission_id):
        raise WrongContext(
            "on_submission_status waits for its own submission, whose wait ends after the hook"
        )
