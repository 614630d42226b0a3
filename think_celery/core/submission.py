"""The life of a submission: one literal table, and the records that callers see.

A missing entry of the table *is* the error. The database's guards, the diagram in `docs/lifecycle.md` and the
tests are compared with this table.
"""

from enum import StrEnum
from typing import Any, Literal

from think_celery.core.record import Instant, Record
from think_celery.errors import StateConflict


class Status(StrEnum):
    """Where a submission stands (S 1.1); the set is closed."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ABORTED = "aborted"
    SKIPPED = "skipped"
    ERROR = "error"


class Kind(StrEnum):
    """How a turn was asked for."""

    SUBMIT = "submit"
    SCHEDULE = "schedule"
    CHAT = "chat"
    SAVE = "save"
    CONTINUE = "continue"


SUBMITTED = (Kind.SUBMIT, Kind.SCHEDULE)
"""Turns that nobody waits for by asking: they are listed, and the status hook is told of them."""


class Event(StrEnum):
    """What can happen to a submission."""

    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RESET = "reset"
    REQUEUE = "requeue"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[Status, Event], Status] = {
    (Status.PENDING, Event.CLAIM): Status.RUNNING,
    (Status.PENDING, Event.CANCEL): Status.ABORTED,
    (Status.PENDING, Event.RESET): Status.SKIPPED,
    (Status.PENDING, Event.EXPIRE): Status.ERROR,
    (Status.RUNNING, Event.COMPLETE): Status.COMPLETED,
    (Status.RUNNING, Event.FAIL): Status.ERROR,
    (Status.RUNNING, Event.CANCEL): Status.ABORTED,
    (Status.RUNNING, Event.RESET): Status.SKIPPED,
    (Status.RUNNING, Event.REQUEUE): Status.PENDING,
}

TERMINAL: frozenset[Status] = frozenset(Status) - {source for source, _ in TRANSITIONS}


def advance(status: Status, event: Event) -> Status:
    """Return the status after an event.

    >>> advance(Status.PENDING, Event.CLAIM)
    <Status.RUNNING: 'running'>

    Raises:
        StateConflict: The table has no such step; nothing changes.
    """
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise StateConflict(f"a submission that is {status} cannot {event}") from None


class Submission(Record):
    """What anyone may know of a submission (S 1.1); times are aware UTC from the ledger's clock."""

    submission_id: str
    agent: str
    """`Type/name` of the agent."""
    kind: Kind
    status: Status
    request_id: str
    idempotency_key: str | None = None
    position: int | None = None
    """Place in the agent's order of acceptance, from 1."""
    attempt: int = 0
    """Starts so far."""
    error: str | None = None
    """Failure text of `error`, reason of `aborted` or `skipped`."""
    metadata: dict[str, Any] | None = None
    message_id: str | None = None
    """The assistant message that this turn wrote last."""
    output: Any = None
    """The structured answer as JSON, when the agent's class asks for one (`output_type`)."""
    usage: dict[str, Any] | None = None
    """Tokens as the model reported them."""
    not_before: Instant | None = None
    """It starts at this time or later; until then it keeps the agent's later submissions waiting."""
    not_after: Instant | None = None
    """Not started by this time, it ends in `error`."""
    run_timeout: float | None = None
    """Running for longer than so many seconds, it ends in `error`."""
    rerun_of: str | None = None
    """The submission that this one repeats."""
    created_at: Instant
    started_at: Instant | None = None
    first_chunk_at: Instant | None = None
    completed_at: Instant | None = None

    @property
    def is_terminal(self) -> bool:
        """True when the status can never change again."""
        return self.status in TERMINAL


class Receipt(Submission):
    """What `submit_messages` returns: the submission, and whether this call created it."""

    accepted: bool
    payload_matches: bool
    """False when id or key were known with other messages (message ids do not count)."""


class CancelResult(Record):
    """What a cancel did; it comes out of the write itself."""

    outcome: Literal["cancelled", "already_terminal", "not_found"]
    submission_id: str
    previous_status: Status | None = None
    """`pending` or `running`, when cancelled."""
    messages_applied: bool | None = None
    """Whether its messages had reached the conversation, when cancelled."""
    submission: Submission | None = None
    """The submission as it is now; absent when there is none."""
