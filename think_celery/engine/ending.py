"""Cancel, reset, delete, pause, run again: the ledger decides first, signals only make it quick."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from think_celery.core.address import Address, check_type_name
from think_celery.core.message import check_identifier, parse_metadata
from think_celery.core.submission import TERMINAL, CancelResult, Receipt, Status
from think_celery.core.wire import clean_text
from think_celery.engine import news, status_hooks
from think_celery.engine.admit import Wish, admit, moment
from think_celery.engine.reading import clamped, named
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger import classes, endings, submissions
from think_celery.ledger.rows import Ended

DELETE_LIMIT = 500
_CLEARED = "the conversation was cleared"
_RESET = "the agent's turns were reset"


def cancel(runtime: Runtime, address: Address, submission_id: str, reason: object) -> CancelResult:
    """Abort a submission that waits or runs, and report what was done (S 1.5)."""
    check_identifier("submission_id", submission_id)
    found = endings.cancel(
        runtime.database, address, submission_id=submission_id, reason=_reason(reason), call=uuid4()
    )
    if found.ended is not None:
        _follow(runtime, address, [found.ended])
        return _cancelled(found.ended)
    if found.terminal is not None:
        return CancelResult(
            outcome="already_terminal", submission_id=submission_id, submission=found.terminal.submission
        )
    return CancelResult(outcome="not_found", submission_id=submission_id)


def cancel_all(
    runtime: Runtime, address: Address, *, metadata: dict[str, Any] | None, reason: object
) -> list[CancelResult]:
    """Abort every submission of an agent that waits or runs, in their order; each with what was done."""
    wanted = parse_metadata(metadata, max_bytes=runtime.settings.max_metadata_bytes)
    ended = endings.cancel_all(runtime.database, address, metadata=wanted, reason=_reason(reason))
    _follow(runtime, address, ended)
    return [_cancelled(end) for end in ended]


def reset(runtime: Runtime, address: Address, *, messages: bool) -> None:
    """End what waits and runs, and with `messages` empty the conversation (S 5).

    The status hooks of the ended rows are called afterwards, one by one.
    """
    note = _CLEARED if messages else _RESET
    ended = endings.reset(runtime.database, address, note=note, messages=messages)
    news.ended(runtime, ended)
    if any(end.row.hook_due for end in ended):
        status_hooks.deliver_beside(runtime, address)


def delete_one(runtime: Runtime, address: Address, submission_id: str) -> bool:
    """Delete an ended submission; False when it is unknown or has not ended (S 1.7)."""
    check_identifier("submission_id", submission_id)
    row = endings.delete_one(runtime.database, address, submission_id=submission_id)
    news.deleted(runtime, [row] if row else [])
    return row is not None


def delete_many(
    runtime: Runtime,
    address: Address,
    *,
    status: str | Iterable[str] | None,
    completed_before: datetime | None,
    limit: int,
) -> int:
    """Delete the oldest ended submissions of these statuses, and return how many (S 1.8)."""
    statuses = _statuses(status)
    before = moment("completed_before", completed_before)
    bounded = clamped(limit, most=DELETE_LIMIT)
    rows = endings.delete_many(runtime.database, address, statuses=statuses, before=before, limit=bounded)
    news.deleted(runtime, rows)
    return len(rows)


def delete_agent(runtime: Runtime, address: Address) -> bool:
    """Delete everything about an agent and its sub-agents; False when there was nothing.

    The agent goes first, so that its turn stops using the others, and then they, the deepest first, so that a
    second call finds what an interrupted one has left.
    """
    existed = _delete(runtime, address)
    below = endings.descendants(runtime.database, address)
    return any([existed, *(_delete(runtime, each) for each in below)])


def _delete(runtime: Runtime, address: Address) -> bool:
    uids = endings.turns_of(runtime.database, address)
    existed, active = endings.delete_agent(runtime.database, address)
    for row in active:
        news.stop(runtime, row)
    runtime.loop.send_off(runtime.streams.forget(uids))
    return existed


def pause(runtime: Runtime, address: Address, *, paused: bool) -> bool:
    """Let nothing more of an agent start, or let it go on; False when it already was so."""
    changed = classes.pause_agent(runtime.database, address, paused=paused)
    if not paused:
        runtime.ring_lane(address)
    return changed


def pause_class(runtime: Runtime, type_name: str, *, paused: bool) -> bool:
    """The same for every agent of a class; after a resume the sweepers ring within seconds."""
    return classes.pause_class(runtime.database, check_type_name(type_name), paused=paused)


def rerun(
    runtime: Runtime, address: Address, submission_id: str, *, idempotency_key: str | None
) -> Receipt | None:
    """Submit a submission's messages once more, as a new one that names the old; None if unknown."""
    check_identifier("submission_id", submission_id)
    found = submissions.payload(runtime.database, address, submission_id=submission_id)
    if found is None:
        return None
    row, messages, body = found
    if not isinstance(messages, list):
        raise InvalidInput("submission_id", f"the stored messages of {submission_id!r} cannot be read")
    # New ids: the old ones are in the conversation already, where a second append of a known id does nothing.
    again = [{**message, "id": str(uuid4())} for message in messages]
    wish = Wish(
        idempotency_key=idempotency_key,
        metadata=row.submission.metadata,
        body=body,
        run_timeout=row.submission.run_timeout,
        rerun_of=submission_id,
    )
    return admit(runtime, address, again, wish)


def _follow(runtime: Runtime, address: Address, ended: Sequence[Ended]) -> None:
    news.ended(runtime, ended)
    if any(end.was is Status.PENDING and end.row.submission.not_before is not None for end in ended):
        runtime.ring_lane(address)  # the bells of those that waited behind it were answered long ago
    if any(end.row.hook_due for end in ended):
        status_hooks.deliver(runtime, address)


def _cancelled(end: Ended) -> CancelResult:
    return CancelResult(
        outcome="cancelled",
        submission_id=end.row.submission.submission_id,
        previous_status=end.was,
        messages_applied=end.row.messages_applied_at is not None,
        submission=end.row.submission,
    )


def _reason(reason: object) -> str | None:
    if reason is None:
        return None
    text = str(reason)
    if clean_text(text) != text:
        raise InvalidInput("reason", "contains a NUL character or half a surrogate pair; remove it")
    return text or None


def _statuses(status: str | Iterable[str] | None) -> list[Status]:
    if status is None:
        return sorted(TERMINAL)
    return [each for each in named("status", Status, status) if each in TERMINAL]
