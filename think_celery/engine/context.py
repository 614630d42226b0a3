"""What the present code runs inside of: a turn, or a status hook; tools' threads and tasks inherit it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from think_celery.abort import AbortSignal
from think_celery.core.address import Address
from think_celery.errors import NestedTurnError, WrongContext


@dataclass(frozen=True, slots=True)
class Here:
    """A turn in progress, as the code that it runs can ask for it."""

    address: Address
    uid: UUID
    root_id: UUID
    """The first turn of the chain that led to this one."""
    chain: tuple[Address, ...]
    """The agents whose turns wait for this one, and last its own."""
    signal: AbortSignal
    """Fires when the turn is stopped."""


_turn: ContextVar[Here | None] = ContextVar("think_turn", default=None)
_hook: ContextVar[tuple[Address, str] | None] = ContextVar("think_hook", default=None)


def here() -> Here | None:
    """Return the turn that the calling code is part of, None outside of any."""
    return _turn.get()


@contextmanager
def inside_turn(turn: Here) -> Iterator[None]:
    """Mark the block as part of an agent's turn."""
    token = _turn.set(turn)
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


def refuse_nesting(address: Address) -> Here | None:
    """Refuse to wait for an agent whose own turn waits for the calling code (T 1.16).

    Returns:
        The turn that the calling code is part of.

    Raises:
        NestedTurnError: The agent is this turn's, or one of those that wait for this turn.
    """
    turn = _turn.get()
    if turn is not None and address in turn.chain:
        chain = turn.chain[turn.chain.index(address) :]
        raise NestedTurnError(*map(str, (*chain, address)))
    return turn


def refuse_deadlock(address: Address, submission_id: str) -> Here | None:
    """Refuse a wait for a submission that could never end (S 1.6).

    Returns:
        The turn that the calling code is part of.

    Raises:
        NestedTurnError: The wait is made inside a turn of the same agent, or of one that waits for it.
        WrongContext: The wait is made in the status hook of that submission.
    """
    if _hook.get() == (address, submission_id):
        raise WrongContext(
            "on_submission_status waits for its own submission, whose wait ends after the hook"
        )
    return refuse_nesting(address)
