"""What anyone may know of an agent's scheduled tasks and of their occurrences."""

from enum import StrEnum

from think_celery.core.record import Instant, Record


class ScheduleStatus(StrEnum):
    """Whether a task comes due."""

    ACTIVE = "active"
    PAUSED = "paused"
    """By people; it stays so when its declaration changes."""
    INVALID = "invalid"
    """Its present declaration cannot be used."""


class OccurrenceState(StrEnum):
    """What became of one due instant."""

    DUE = "due"
    RUNNING = "running"
    SUBMITTED = "submitted"
    """Its submission is accepted; how that goes on says the submission."""
    DONE = "done"
    """Its submission has ended."""
    HANDLED = "handled"
    ERROR = "error"
    MISSED = "missed"
    """Too late by the task's policy; it did not run."""
    SKIPPED = "skipped"
    """An earlier one was open; by the task's policy it did not run."""
    SUPERSEDED = "superseded"
    """The schedule changed or went before it began."""


class Occurrence(Record):
    """One due instant of a task."""

    agent: str
    task_id: str
    scheduled_for: Instant
    """When it was meant to be, however late it ran."""
    state: OccurrenceState
    manual: bool = False
    """Somebody asked for it, beside the timetable."""
    late_by_ms: int = 0
    """How late it was when it came to be run."""
    missed_count: int = 0
    """Further due instants that it stands for."""
    latest_missed_for: Instant | None = None
    attempts: int = 0
    """Starts; nothing for a literal prompt, which is submitted at once."""
    submission_id: str | None = None
    submission_status: str | None = None
    """Absent when the record of the submission was deleted."""
    error: str | None = None
    created_at: Instant
    started_at: Instant | None = None
    finished_at: Instant | None = None


class LastOccurrence(Record):
    """A task's youngest occurrence, in short."""

    scheduled_for: Instant
    state: OccurrenceState
    late_by_ms: int = 0
    missed_count: int = 0
    submission_id: str | None = None
    submission_status: str | None = None
    error: str | None = None


class ScheduleView(Record):
    """One scheduled task of one agent."""

    agent: str
    task_id: str
    status: ScheduleStatus
    reason: str | None = None
    """Why it is invalid."""
    kind: str | None = None
    """`interval`, `wall-clock` or `cron`; absent, like all that is declared, when it could never be read."""
    schedule: str | None = None
    timezone: str | None = None
    action: str | None = None
    """`prompt`, `function` (that returns the prompt) or `handler`."""
    overlap: str | None = None
    missed: str | None = None
    grace_seconds: float | None = None
    next_run_at: Instant | None = None
    due_at: Instant | None = None
    """When it is looked at next: later than `next_run_at` while it is held back."""
    last: LastOccurrence | None = None


class Degradation(Record):
    """A step of an agent's start that did not succeed; the agent serves without it."""

    step: str
    error: str
    task_id: str | None = None
    """The one task that is affected; absent when all are."""
