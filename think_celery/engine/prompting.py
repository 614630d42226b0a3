"""What an occurrence says: its prompt, its keys, and what a handler is told of it (C 2.5)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from think_celery.core.address import Address
from think_celery.core.submission import Kind
from think_celery.core.task import ScheduleContext
from think_celery.engine import admit, hooks
from think_celery.engine.admit import Wish
from think_celery.engine.declaring import Task
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger.occurrences import OccurrenceRow
from think_celery.ledger.submissions import Identity, Request
from think_celery.messages import user_message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one occurrence when it comes to be run."""

    address: Address
    scheduled_for: datetime
    late_ms: int = 0
    missed_count: int = 0
    latest_missed_for: datetime | None = None
    manual_id: UUID | None = None


def facts_of(row: OccurrenceRow) -> Facts:
    """Return what the ledger says of an occurrence."""
    return Facts(
        row.slot.address,
        row.slot.scheduled_for,
        row.late_ms,
        row.missed_count,
        row.latest_missed_for,
        row.manual_id,
    )


async def text_of(task: Task) -> str:
    """Return the prompt as the code of now has it.

    Raises:
        InvalidInput: The prompt function returned no text, or a blank one.
        Exception: What it raised.
    """
    prompt = task.task.prompt
    text = await hooks.call(prompt) if callable(prompt) else prompt
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("prompt", f"task {task.task_id!r} gave {type(text).__name__}, not a text to send")
    return text


def request_of(runtime: Runtime, task: Task, facts: Facts, text: str) -> Request:
    """Return the submission of an occurrence, ready to be written.

    Raises:
        InvalidInput: The text or the metadata cannot be accepted.
    """
    uid = uuid4()
    _, key = keys_of(task.task_id, facts)
    identity = Identity(uid=uid, submission_id=str(uid), id_given=False, key=key)
    wish = Wish(metadata=_metadata(task, facts), kind=Kind.SCHEDULE)
    return admit.request_of(runtime, facts.address, identity, [user_message(text)], wish)


def context_of(task: Task, facts: Facts) -> ScheduleContext:
    """Return what a handler is told of its occurrence."""
    occurrence_key, idempotency_key = keys_of(task.task_id, facts)
    return ScheduleContext(
        task_id=task.task_id,
        scheduled_for=facts.scheduled_for,
        occurrence_key=occurrence_key,
        idempotency_key=idempotency_key,
        schedule=task.schedule.normalized,
        schedule_kind=str(task.schedule.kind),
        timezone=task.schedule.timezone,
        metadata=task.task.metadata,
        late_by_ms=facts.late_ms,
        missed_count=facts.missed_count,
        latest_missed_for=facts.latest_missed_for,
    )


def keys_of(task_id: str, facts: Facts) -> tuple[str, str]:
    """Return an occurrence's key within its agent, and its idempotency key."""
    which = _milliseconds(facts.scheduled_for) if facts.manual_id is None else f"manual:{facts.manual_id}"
    return f"{task_id}:{which}", f"think-schedule:{owner_key(facts.address)}:{task_id}:{which}"


@cache
def owner_key(address: Address) -> str:
    """Return 32 hexadecimal digits that stand for an agent and its parents."""
    return sha256(str(address).encode()).hexdigest()[:32]


def _metadata(task: Task, facts: Facts) -> dict[str, Any]:
    late = {"lateByMs": facts.late_ms} if facts.late_ms else {}
    if facts.missed_count:
        late["missedCount"] = facts.missed_count
    if facts.latest_missed_for is not None:
        late["latestMissedFor"] = _milliseconds(facts.latest_missed_for)
    return {
        **(task.task.metadata or {}),
        **late,
        "source": "scheduled-task",
        "ownerKey": owner_key(facts.address),
        "taskId": task.task_id,
        "scheduledFor": _milliseconds(facts.scheduled_for),
        "schedule": task.schedule.normalized,
    }


def _milliseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)
