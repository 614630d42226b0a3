"""Occurrences of tasks: taken under a lease, run, and written down; and what is shown of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select

from think_celery.core.address import Address
from think_celery.errors import LaneFull
from think_celery.ledger.database import Database
from think_celery.ledger.rows import instant
from think_celery.ledger.schedules import request_json
from think_celery.ledger.schema import occurrences, submissions
from think_celery.ledger.submissions import Acceptance, Request, acceptance_of

STRIKES = 3
"""Starts whose process was lost, after which an occurrence is given up."""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Which occurrence is meant."""

    address: Address
    task_id: str
    scheduled_for: datetime


@dataclass(frozen=True, slots=True)
class OccurrenceRow:
    """One due instant of a task and what became of it."""

    slot: Slot
    manual_id: UUID | None
    generation: int
    state: str
    attempts: int
    strikes: int
    late_ms: int
    missed_count: int
    latest_missed_for: datetime | None
    submission_id: str | None
    submission_status: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def take(database: Database, slot: Slot, *, token: UUID, lease: timedelta) -> OccurrenceRow | None:
    """Take an occurrence that is due.

    Returns:
        The occurrence, running under the token's lease, or superseded; None when there is nothing to take.
    """
    parameters = {**_named(slot), "p_token": token, "p_lease": lease}
    answer = database.step("take_occurrence", parameters)
    return row_of(answer) if answer.get("task_id") is not None else None


def renew(database: Database, slot: Slot, *, token: UUID, lease: timedelta) -> bool:
    """Renew the lease; False when it is lost."""
    return _keep(database, slot, token, "running", None, lease)


def release(database: Database, slot: Slot, *, token: UUID, error: str, pause: timedelta) -> bool:
    """Give an occurrence back, to be run again after a pause; False when the lease was lost before."""
    return _keep(database, slot, token, "due", error, pause)


def finish(database: Database, slot: Slot, *, token: UUID, error: str | None) -> bool:
    """Write that a handler has returned, or how the occurrence failed; False when the lease was lost."""
    return _keep(database, slot, token, "handled" if error is None else "error", error, timedelta())


def submit(database: Database, slot: Slot, request: Request, *, token: UUID) -> Acceptance | None:
    """Accept an occurrence's submission and write that down, in one commit; None when the lease was lost.

    Raises:
        LaneFull: Too many submissions of the agent wait; nothing was written.
    """
    parameters = {**_named(slot), "p_token": token, "p_request": request_json(database, request)}
    answer = database.step("submit_occurrence", parameters)
    if answer["outcome"] == "lost":
        return None
    if answer["outcome"] == "full":
        raise LaneFull(str(slot.address), database.settings.max_pending)
    return acceptance_of(request.identity, request.address, answer, request)


def due(
    database: Database, type_names: Sequence[str], *, ring: timedelta, limit: int
) -> list[tuple[Slot, bool]]:
    """Mark and return occurrences of these classes that nobody runs although their bell has rung.

    Returns:
        Each with whether it was given up, because its process was lost too often.
    """
    statement = database.sql(
        "SELECT * FROM {schema}.due_occurrences(%(types)s, %(ring)s, %(strikes)s, %(limit)s)"
    )
    parameters = {"types": list(type_names), "ring": ring, "strikes": STRIKES, "limit": limit}
    rows = database.run(lambda connection: connection.exec_driver_sql(statement, parameters).all())
    return [
        (
            Slot(Address(row.agent_type, row.agent_name), row.task_id, instant(row.scheduled_for)),
            row.given_up,
        )
        for row in rows
    ]


def run_now(
    database: Database, address: Address, task_id: str, *, manual_id: UUID, ring: timedelta
) -> OccurrenceRow | str:
    """Ask for an extra occurrence; `not_found` without such a task, `open` while its handler runs."""
    parameters = {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_task": task_id,
        "p_manual": manual_id,
        "p_ring": ring,
    }
    answer = database.step("run_now", parameters)
    return row_of(answer["occurrence"]) if answer["outcome"] == "due" else str(answer["outcome"])


def listing(
    database: Database, address: Address, *, task_id: str | None, states: Sequence[str] | None, limit: int
) -> list[OccurrenceRow]:
    """Return an agent's occurrences, the youngest first.

    Args:
        task_id: Only of this task.
        states: Only those in one of these states.
    """
    query = (
        select(occurrences, submissions.c.status.label("submission_status"))
        .outerjoin(submissions, submissions.c.uid == occurrences.c.submission_uid)
        .where(
            occurrences.c.agent_type == address.type_name,
            occurrences.c.agent_name == address.name,
        )
        .order_by(occurrences.c.scheduled_for.desc())
        .limit(limit)
    )
    if task_id is not None:
        query = query.where(occurrences.c.task_id == task_id)
    if states is not None:
        query = query.where(occurrences.c.state.in_(states))
    rows = database.run(lambda connection: connection.execute(query).mappings().all())
    return [row_of(row) for row in rows]


def prune(database: Database, *, older_than: timedelta, limit: int = 1000) -> int:
    """Delete occurrences that ended before that and lie behind their schedule; returns how many."""
    parameters = {"p_older": older_than, "p_limit": limit}
    return int(database.step("prune_occurrences", parameters)["value"])


def row_of(row: Mapping[Any, Any]) -> OccurrenceRow:
    """Return an occurrence from a query or from the JSON of a step."""
    manual = row["manual_id"]
    return OccurrenceRow(
        slot=Slot(
            Address(row["agent_type"], row["agent_name"]), row["task_id"], instant(row["scheduled_for"])
        ),
        manual_id=None if manual is None else UUID(str(manual)),
        latest_missed_for=instant(row["latest_missed_for"]),
        submission_status=row.get("submission_status"),
        created_at=instant(row["created_at"]),
        started_at=instant(row["started_at"]),
        finished_at=instant(row["finished_at"]),
        **{name: row[name] for name in _PLAIN},
    )


_PLAIN = (
    *("generation", "state", "attempts", "strikes", "late_ms", "missed_count"),
    *("submission_id", "error"),
)


def _keep(
    database: Database, slot: Slot, token: UUID, state: str, error: str | None, length: timedelta
) -> bool:
    parameters = {**_named(slot), "p_token": token, "p_state": state, "p_error": error, "p_for": length}
    return bool(database.step("keep_occurrence", parameters)["value"])


def _named(slot: Slot) -> dict[str, Any]:
    return {
        "p_type": slot.address.type_name,
        "p_name": slot.address.name,
        "p_task": slot.task_id,
        "p_scheduled_for": slot.scheduled_for,
    }
