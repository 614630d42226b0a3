"""Answer questions about submissions, messages and lanes; nothing here writes."""

from collections.abc import Iterable
from typing import Any

from think_celery.core.address import Address
from think_celery.core.message import check_identifier, parse_metadata
from think_celery.core.record import Instant, Record
from think_celery.core.submission import SUBMITTED, Kind, Status, Submission
from think_celery.core.turn import TurnView
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger import messages, submissions, workers
from think_celery.ledger.rows import Row
from think_celery.ledger.survey import survey as survey_lanes

LIST_LIMIT = 100


class LaneView(Record):
    """An agent's lane as `think-celery agents` shows it."""

    agent: str
    pending: int
    """Submissions that wait for their turn."""
    oldest_pending_at: Instant | None = None
    running: str | None = None
    """Id of the submission that runs now."""
    used_at: Instant
    """Last accept, claim or settle."""
    paused: bool = False


def inspect(runtime: Runtime, address: Address, submission_id: str) -> Submission | None:
    """Return the submission as it is now, None for an unknown id (S 1.3)."""
    check_identifier("submission_id", submission_id)
    row = submissions.find(runtime.database, address, submission_id=submission_id)
    return None if row is None else row.submission


def listing(
    runtime: Runtime,
    address: Address,
    *,
    status: str | Iterable[str] | None = None,
    limit: int = 50,
    kind: str | Iterable[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> list[Submission]:
    """Return an agent's submissions, youngest first (S 1.4).

    Args:
        status: One status or several; an empty collection gives nothing, None gives all.
        limit: Clamped to 1…100, applied after the filters.
        kind: One kind or several; by default submissions and schedules.
        metadata: Only those whose metadata contains this.

    Raises:
        InvalidInput: An unknown status or kind, or a limit that is no whole number.
    """
    bounded = clamped(limit, most=LIST_LIMIT)
    statuses = None if status is None else named("status", Status, status)
    kinds = SUBMITTED if kind is None else named("kind", Kind, kind)
    wanted = parse_metadata(metadata, max_bytes=runtime.settings.max_metadata_bytes)
    return submissions.listing(
        runtime.database, address, statuses=statuses, kinds=kinds, limit=bounded, metadata=wanted
    )


def transcript(runtime: Runtime, address: Address) -> list[dict[str, Any]]:
    """Return the agent's conversation in order, as JSON objects (AI SDK `UIMessage`)."""
    return messages.transcript(runtime.database, address)


def message(runtime: Runtime, address: Address, message_id: str) -> dict[str, Any] | None:
    """Return one message of the conversation, None when there is none with that id."""
    return messages.get(runtime.database, address, message_id=message_id)


def has_pending_interaction(runtime: Runtime, address: Address) -> bool:
    """True when a tool call of the conversation waits for somebody's approval (T 1.10)."""
    return messages.has_open_approval(runtime.database, address)


def unserved(runtime: Runtime, address: Address) -> str | None:
    """Say why nothing of an agent can start at the moment, None when a living worker serves its class."""
    alive = [presence.worker for presence in workers.present(runtime.database) if presence.alive]
    served = sorted({name for worker in alive for name in worker.agent_types})
    if address.type_name in served:
        return None
    if not alive:
        return "no worker is alive; it starts when one comes"
    return (
        f"no living worker serves the class {address.type_name} (they serve {', '.join(served) or 'none'}); "
        "it starts when one does"
    )


def survey(runtime: Runtime, *, limit: int = 100) -> list[LaneView]:
    """Return lanes for people: those with work first, then the most recently used."""
    return [
        LaneView(
            agent=str(lane.address),
            pending=lane.pending,
            oldest_pending_at=lane.oldest_pending_at,
            running=lane.running,
            used_at=lane.used_at,
            paused=lane.paused,
        )
        for lane in survey_lanes(runtime.database, limit=limit)
    ]


def view(runtime: Runtime, known: Row) -> TurnView | None:
    """Return what the ledger says of a turn, for a reader of its stream; None when the row was deleted."""
    row = submissions.find_by_uid(runtime.database, known.uid)
    if row is None:
        return None
    submission = row.submission
    stored = None
    if submission.is_terminal and submission.message_id is not None:
        stored = messages.get(runtime.database, row.address, message_id=submission.message_id)
    return TurnView(
        submission.status.value, submission.attempt, submission.error, submission.message_id, stored
    )


def clamped(limit: object, *, most: int) -> int:
    """Return a limit between 1 and the most.

    Raises:
        InvalidInput: No whole number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidInput("limit", f"{limit!r} is not a whole number")
    return max(1, min(limit, most))


def named(field: str, names: Any, value: object) -> list[Any]:
    """Return the members that one name or several name, in a caller's filter.

    Raises:
        InvalidInput: A name is unknown.
    """
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    known = {str(name) for name in names}
    for name in given:
        if not isinstance(name, str) or name not in known:
            raise InvalidInput(field, f"{name!r} is unknown; use {', '.join(str(n) for n in names)}")
    return [names(name) for name in given]
