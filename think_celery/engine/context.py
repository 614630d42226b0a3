"""What the present code runs inside of: a turn, or a status hook; tools' threads and tasks inherit it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from think_celery.abort import AbortSignal
from think_celery.core.address import Address
from think_celery.errors import NestedTurnError, WrongContext


@dataclass(slots=True, eq=False)
class Here:
    """A turn in progress, as the code that it runs can ask for it."""

    address: Address
    uid: UUID
    root_id: UUID
    """The first turn of the chain that led to this one."""
    caller: "Here | None"
    """The turn of this process that asked for it."""
    signal: AbortSignal
    """Fires when the turn is stopped."""
    is_over: bool = False
    """Tasks that it has left behind go on, and nobody waits for them through it."""

    @property
    def chain(self) -> list[Address]:
        """The agents whose turns wait for the code that runs here, this turn's own last."""
        chain: list[Address] = []
        turn: Here | None = self
        while turn is not None and not turn.is_over:
            chain.insert(0, turn.address)
            turn = turn.caller
        return chain


@dataclass(frozen=True, slots=True)
class _Hook:
    """A status hook in progress."""

    address: Address
    submission_id: str
    holds_lane: bool


_turn: ContextVar[Here | None] = ContextVar("think_turn", default=None)
_hook: ContextVar[_Hook | None] = ContextVar("think_hook", default=None)
_response: ContextVar[Callable[[], object] | None] = ContextVar("think_response", default=None)


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
        turn.is_over = True
        _turn.reset(token)


@contextmanager
def inside_hook(address: Address, submission_id: str, *, holds_lane: bool) -> Iterator[None]:
    """Mark the block as the status hook of a submission, whose turn may wait for it to start."""
    token = _hook.set(_Hook(address, submission_id, holds_lane))
    try:
        yield
    finally:
        _hook.reset(token)


@contextmanager
def inside_response(before_wait: Callable[[], object]) -> Iterator[None]:
    """Mark the block as a response hook, which is to say so before it waits for any agent."""
    token = _response.set(before_wait)
    try:
        yield
    finally:
        _response.reset(token)


def refuse_nesting(address: Address) -> Here | None:
    """Refuse to wait for an agent whose own turn waits for the calling code (T 1.16).

    Returns:
        The turn that the calling code is part of.

    Raises:
        NestedTurnError: The agent is this turn's, or one of those that wait for this turn.
    """
    turn = _turn.get()
    chain = [] if turn is None else turn.chain
    if address in chain:
        raise NestedTurnError(*map(str, (*chain[chain.index(address) :], address)))
    hook = _hook.get()
    if hook is not None and hook.holds_lane and hook.address == address:
        raise NestedTurnError(str(address), str(address))
    if (before_wait := _response.get()) is not None:
        before_wait()
    return turn


def refuse_deadlock(address: Address, submission_id: str) -> Here | None:
    """Refuse a wait for a submission that could never end (S 1.6).

    Returns:
        The turn that the calling code is part of.

    Raises:
        NestedTurnError: The wait is made inside a turn of the same agent, or of one that waits for it.
        WrongContext: The wait is made in the status hook of that submission.
    """
    hook = _hook.get()
    if hook is not None and (hook.address, hook.submission_id) == (address, submission_id):
        raise WrongContext(
            "on_submission_status waits for its own submission, whose wait ends after the hook"
        )
    return refuse_nesting(address)
