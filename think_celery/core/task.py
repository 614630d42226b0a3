"""What an agent declares that it does again and again, and whether that can be used (C 1.2)."""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Literal, NoReturn, get_args

from think_celery.core.backoff import delay_seconds
from think_celery.core.cron import Cron
from think_celery.core.failure import shown
from think_celery.core.message import parse_metadata
from think_celery.core.schedule import Schedule, digest, parse
from think_celery.core.wire import strict_json
from think_celery.errors import InvalidInput, InvalidSchedule, ScheduleFault

Overlap = Literal["hold", "queue", "skip"]
Missed = Literal["once", "latest", "skip"]

TASK_ID_LIMIT = 200
_TASK_ID = re.compile(r"[A-Za-z0-9_-]+")
_ANY_SIZE = 100_000_000
_HUGE = 1e12
_BOTH_OR_NEITHER = "Scheduled task {} must have exactly one of prompt or handler"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often the action of one occurrence is tried, with growing pauses (C 2.8).

    Attributes:
        max_attempts: Starts in all, 1 or more.
        base_delay_ms: The pause after the first failure is at most twice that; it doubles with every other.
        max_delay_ms: Longest pause.
    """

    max_attempts: int = 3
    base_delay_ms: float = 100
    max_delay_ms: float = 3000


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """Something that an agent does again and again; it is looked at where it is armed, not where it is made.

    So one that cannot be used harms no other: `think-celery schedules check` names it, and so does
    `get_start_degradations()`.

    Attributes:
        schedule: When, such as `every day at 09:00` (see `parse`), or what `cron` returned.
        timezone: The zone of local times; by default the one in the text, else the agent's default zone.
        prompt: A text, or a function without arguments that returns it; it is submitted to the agent.
        handler: A function of a `ScheduleContext`, to be called instead. Functions may be coroutines.
        retry: How often the action is tried when it raises; a mapping of `Retry`'s fields will do. None for
            three attempts within a second.
        metadata: A JSON object, given to the submission or the handler.
        overlap: What happens while an earlier occurrence is open: `hold` waits, `queue` submits nevertheless,
            `skip` leaves the new one out. Handlers are never called twice at once.
        missed: What runs after an outage: `once` the oldest that was missed, `latest` the youngest, `skip`
            none that is too late.
        misfire_grace_seconds: How late is too late for `skip`.
    """

    schedule: str | Cron
    _: KW_ONLY
    timezone: str | None = None
    prompt: "str | Callable[[], str | Awaitable[str]] | None" = None
    handler: "Callable[[ScheduleContext], object] | None" = None
    retry: Retry | Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    overlap: Overlap = "hold"
    missed: Missed = "once"
    misfire_grace_seconds: float = 60.0

    @property
    def action(self) -> Literal["prompt", "function", "handler"]:
        """What an occurrence does: submit a text, submit what a function returns, or call a handler."""
        if self.handler is not None:
            return "handler"
        return "prompt" if isinstance(self.prompt, str) else "function"

    @property
    def retry_policy(self) -> Retry:
        """`retry` with every field."""
        if isinstance(self.retry, Retry):
            return self.retry
        return Retry() if self.retry is None else Retry(**self.retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleContext:
    """What a handler is told of its occurrence; the same at every attempt (C 2.5).

    Attributes:
        task_id: Its name in `get_scheduled_tasks`.
        scheduled_for: When it was meant to be, however late it is.
        occurrence_key: Names the occurrence within the agent.
        idempotency_key: Names it everywhere; to be passed on to whatever must not happen twice.
        schedule: The text as it was understood.
        schedule_kind: `interval`, `wall-clock` or `cron`.
        timezone: The zone, None for an interval.
        metadata: The task's.
        late_by_ms: How late it was when it came to be run.
        missed_count: Further due instants that it stands for.
        latest_missed_for: The youngest of them.
    """

    task_id: str
    scheduled_for: datetime
    occurrence_key: str
    idempotency_key: str
    schedule: str
    schedule_kind: str
    timezone: str | None = None
    metadata: Mapping[str, Any] | None = None
    late_by_ms: int = 0
    missed_count: int = 0
    latest_missed_for: datetime | None = None


def check_task(task_id: object, task: object, *, default_timezone: str | None = None) -> Schedule:
    """Return the schedule of a task that can be used as it is declared.

    Args:
        task_id: Its key in the mapping of tasks.
        task: A `ScheduledTask`.
        default_timezone: The zone of tasks that name none.

    Raises:
        InvalidSchedule: The first fault; those of the schedule before those of the action (C 1.5).
    """
    name = check_task_id(task_id)
    if not isinstance(task, ScheduledTask):
        raise InvalidSchedule(
            "TASK_INVALID", f"Scheduled task {name!r} must be a ScheduledTask, not {type(task).__name__}"
        )
    schedule = parse(task.schedule, timezone=task.timezone, default_timezone=default_timezone)
    _check_action(name, task)
    _check_retry(name, task)
    _check_policies(name, task)
    _check_json(name, "metadata", lambda: parse_metadata(task.metadata, max_bytes=_ANY_SIZE))
    return schedule


def check_task_id(task_id: object) -> str:
    """Return a task id, or raise InvalidSchedule: 1 to 200 ASCII letters, digits, `_` and `-`."""
    if isinstance(task_id, str) and _TASK_ID.fullmatch(task_id) and len(task_id) <= TASK_ID_LIMIT:
        return task_id
    rule = f"1 to {TASK_ID_LIMIT} ASCII letters, digits, _ and -"
    raise InvalidSchedule("TASK_ID_INVALID", f"Invalid scheduled task id {shown(task_id)}; it has {rule}")


def task_hash(task: ScheduledTask, schedule: Schedule) -> str:
    """Return what differs when anything differs that a checked declaration says (C 2.1).

    The code of functions is not looked at, since the code of now is what runs.
    """
    prompt = task.prompt if isinstance(task.prompt, str) else None
    retry = task.retry_policy
    retries = [retry.max_attempts, retry.base_delay_ms, retry.max_delay_ms]
    policies = [task.overlap, task.missed, task.misfire_grace_seconds]
    metadata = parse_metadata(task.metadata, max_bytes=_ANY_SIZE)
    return digest([schedule.hash, schedule.normalized, task.action, prompt, metadata, retries, policies])


def retry_delay(retry: Retry, attempt: int, *, share: float) -> float:
    """Return the pause in seconds after a failed attempt.

    Args:
        attempt: From 1.
        share: Drawn from 0 to 1, so that those who failed together do not come back together.

    >>> [retry_delay(Retry(), attempt, share=1.0) for attempt in (1, 2, 3, 9)]
    [0.2, 0.4, 0.8, 3.0]
    """
    longest = delay_seconds(attempt, base=2 * retry.base_delay_ms, limit=retry.max_delay_ms)
    return math.floor(share * longest) / 1000


def _check_action(name: str, task: ScheduledTask) -> None:
    if (task.prompt is None) == (task.handler is None):
        raise InvalidSchedule("ACTION_INVALID", _BOTH_OR_NEITHER.format(repr(name)))
    if isinstance(task.prompt, str):
        if not task.prompt.strip():
            _refuse("ACTION_INVALID", name, "has a blank prompt; say what the agent is to do")
        _check_json(name, "prompt", lambda: strict_json("prompt", task.prompt, max_bytes=_ANY_SIZE))
    elif not callable(task.prompt if task.handler is None else task.handler):
        _refuse("ACTION_INVALID", name, "needs a text or a function as prompt, or a function as handler")


def _check_retry(name: str, task: ScheduledTask) -> None:
    try:
        retry = task.retry_policy
    except TypeError:
        known = ", ".join(Retry.__slots__)
        _refuse("RETRY_INVALID", name, f"has an unknown retry {shown(task.retry)}; it may name {known}")
    if type(retry.max_attempts) is not int or retry.max_attempts < 1:
        _refuse("RETRY_INVALID", name, f"has max_attempts={shown(retry.max_attempts)}; it is 1 or more")
    if not (_is_number(retry.base_delay_ms) and _is_number(retry.max_delay_ms)):
        _refuse("RETRY_INVALID", name, "has a delay that is not a number of milliseconds above 0")
    if not 0 < retry.base_delay_ms <= retry.max_delay_ms:
        _refuse("RETRY_INVALID", name, "needs delays above 0, and base_delay_ms not above max_delay_ms")


def _check_policies(name: str, task: ScheduledTask) -> None:
    for field, allowed in (("overlap", get_args(Overlap)), ("missed", get_args(Missed))):
        if getattr(task, field) not in allowed:
            _refuse("POLICY_INVALID", name, f"has an unknown {field}; it is one of {', '.join(allowed)}")
    if not _is_number(task.misfire_grace_seconds) or task.misfire_grace_seconds < 0:
        _refuse("POLICY_INVALID", name, "needs a number of seconds from 0 on as misfire_grace_seconds")


def _check_json(name: str, field: Literal["metadata", "prompt"], check: Callable[[], object]) -> None:
    try:
        check()
    except InvalidInput as error:
        code: ScheduleFault = "METADATA_INVALID" if field == "metadata" else "ACTION_INVALID"
        raise InvalidSchedule(code, f"Scheduled task {name!r}: {error}") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE


def _refuse(code: ScheduleFault, name: str, problem: str) -> NoReturn:
    raise InvalidSchedule(code, f"Scheduled task {name!r} {problem}")
