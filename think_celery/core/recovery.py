"""What becomes of a turn whose worker died."""

from dataclasses import dataclass

_INTERRUPTED = "interrupted: the worker died after the turn had begun; submit it again if that is safe"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Nothing of the turn reached the conversation: it goes back to its place."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The turn ends in `error` with this text."""

    error: str


def decide(*, applied: bool, starts: int, max_starts: int) -> Requeue | GiveUp:
    """Decide about a turn whose worker gave no sign of life (S 6.2).

    Only what provably never started is run again: once the messages are part of the conversation, tools may
    have acted, and a second run could act twice.

    Args:
        applied: Its messages are part of the conversation.
        starts: Starts so far.
        max_starts: Most starts of a turn that never reached the conversation.
    """
    if applied:
        return GiveUp(_INTERRUPTED)
    if starts >= max_starts:
        return GiveUp(f"given up after {starts} starts, none of which reached the conversation")
    return Requeue()


def is_interruption(error: str | None) -> bool:
    """True when a row's error says that its worker died, and not that the turn failed."""
    return error == _INTERRUPTED
