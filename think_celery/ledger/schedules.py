"""Schedules of agents: what is due, the step that fires it, and what declarations change."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping, func, select, update

from think_celery.core.address import Address
from think_celery.ledger.database import Database
from think_celery.ledger.rows import instant
from think_celery.ledger.schema import agents, occurrences, schedules, submissions
from think_celery.ledger.submissions import Acceptance, Request, acceptance_of


@dataclass(frozen=True, slots=True)
class Declared:
    """The part of a schedule's row that its declaration says."""

    kind: str
    schedule: str
    timezone: str | None
    action: str
    overlap: str
    missed: str
    grace_seconds: float
    schedule_hash: str
    task_hash: str
    tzdata_version: str


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One task of one agent."""

    address: Address
    task_id: str
    declared: Declared | None
    """None for a task whose declaration could never be read."""
    generation: int
    paused: bool
    invalid: str | None
    next_run_at: datetime | None
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Firing:
    """What to do with one due instant, and when the next one is.

    Attributes:
        state: `due` to run it, `missed` to note only that it was.
        overlap: What becomes of it while others are open.
        most: So many, at which it is held (or, with the policy `skip`, left out).
        request: The submission of a literal prompt.
    """

    scheduled_for: datetime
    state: str
    late_ms: int
    missed_count: int
    latest_missed_for: datetime | None
    next_run_at: datetime
    overlap: str
    most: int
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Fired:
    """What the step did.

    The outcome is the occurrence's state (`submitted`, `due`, `missed`, `skipped`), or why there is none:
    `held`, `taken` or `moved` by somebody else, `known` for an instant that had its occurrence before.
    """

    outcome: str
    acceptance: Acceptance | None = None


@dataclass(frozen=True, slots=True)
class LastOccurrence:
    """A task's youngest occurrence, as people look at it."""

    scheduled_for: datetime
    state: str
    late_ms: int
    missed_count: int
    submission_id: str | None
    submission_status: str | None
    error: str | None


def due(database: Database, type_names: Sequence[str], *, limit: int) -> tuple[datetime, list[ScheduleRow]]:
    """Return the database's time and tasks of these classes that are due, the longest overdue first."""
    statement = database.sql(_DUE)
    parameters = {"types": list(type_names), "limit": limit}
    rows = database.run(lambda connection: connection.exec_driver_sql(statement, parameters).mappings().all())
    now = instant(rows[0]["now"])
    found = sorted((row for row in rows if row["task_id"] is not None), key=lambda row: row["due_at"])
    return now, [row_of(row) for row in found[:limit]]


# The first row is there for its time alone. `now()`, because an index takes no volatile bound.
_DUE = """
SELECT now() AS now, s.* FROM (SELECT 1) one LEFT JOIN (
    SELECT l.* FROM unnest(%(types)s::text[]) t (agent_type), LATERAL (
        SELECT * FROM {schema}.schedules
        WHERE agent_type = t.agent_type AND NOT paused AND invalid IS NULL AND due_at <= now()
        ORDER BY due_at LIMIT %(limit)s
    ) l
) s ON true
"""


def fire(database: Database, row: ScheduleRow, firing: Firing, *, pause: timedelta, ring: timedelta) -> Fired:
    """Give a due instant its occurrence, and a literal prompt its submission, and move the schedule on.

    One commit; repeated or done by several at once it counts once.

    Args:
        pause: When a held one is looked at again.
        ring: When the bell of one that is due is rung again.
    """
    request = firing.request
    parameters = {
        **_named(row.address, row.task_id),
        "p_slot": row.next_run_at,
        "p_generation": row.generation,
        "p_overlap": firing.overlap,
        "p_most": firing.most,
        "p_pause": pause,
        "p_scheduled_for": firing.scheduled_for,
        "p_state": firing.state,
        "p_late_ms": firing.late_ms,
        "p_missed_count": firing.missed_count,
        "p_latest_missed": firing.latest_missed_for,
        "p_next": firing.next_run_at,
        "p_ring": ring,
        "p_request": None if request is None else request_json(database, request),
    }
    answer = database.step("fire", parameters)
    accepted = answer.get("accepted")
    if request is None or accepted is None:
        return Fired(answer["outcome"])
    return Fired(answer["outcome"], acceptance_of(request.identity, request.address, accepted, request))


def hold(database: Database, row: ScheduleRow, *, pause: timedelta) -> None:
    """Look at a due task again after a pause, unless somebody has changed it meanwhile."""
    statement = (
        update(schedules)
        .where(
            schedules.c.agent_type == row.address.type_name,
            schedules.c.agent_name == row.address.name,
            schedules.c.task_id == row.task_id,
            schedules.c.generation == row.generation,
            schedules.c.next_run_at == row.next_run_at,
        )
        .values(due_at=func.clock_timestamp() + pause)
    )
    database.run(lambda connection: connection.execute(statement))


def request_json(database: Database, request: Request) -> str:
    """Return a request as the steps of occurrences take it."""
    values = {
        "uid": str(request.identity.uid),
        "submission_id": request.identity.submission_id,
        "key": request.identity.key,
        "messages": json.loads(request.messages),
        "hash": request.body_hash.hex(),
        "metadata": None if request.metadata is None else json.loads(request.metadata),
        "announce": f"{database.settings.announce_seconds} seconds",
        "max_pending": database.settings.max_pending,
        "webhook_url": request.options.webhook_url,
    }
    return json.dumps(values, ensure_ascii=False)


def of_agents(
    database: Database, type_name: str, names: Sequence[str]
) -> tuple[datetime, dict[str, list[ScheduleRow]]]:
    """Return the database's time and the tasks of these agents of one class."""
    query = select(schedules).where(schedules.c.agent_type == type_name, schedules.c.agent_name.in_(names))
    now = select(func.clock_timestamp())
    found: dict[str, list[ScheduleRow]] = {name: [] for name in names}
    at, rows = database.run(
        lambda connection: (
            connection.execute(now).scalar_one(),
            connection.execute(query).mappings().all(),
        )
    )
    for row in rows:
        found[row["agent_name"]].append(row_of(row))
    return instant(at), found


def switch(database: Database, row: ScheduleRow, *, paused: bool, next_run_at: datetime | None) -> str:
    """Pause or resume a task: `changed`, `unchanged`, `not_found`, or `moved` since it was read."""
    parameters = {
        **_named(row.address, row.task_id),
        "p_paused": paused,
        "p_slot": row.next_run_at,
        "p_next": next_run_at,
    }
    return str(database.step("switch_schedule", parameters)["outcome"])


def listing(
    database: Database,
    *,
    address: Address | None = None,
    type_name: str | None = None,
    task_id: str | None = None,
    limit: int,
) -> list[tuple[ScheduleRow, LastOccurrence | None]]:
    """Return tasks with their youngest occurrence, the next one due first."""
    chosen_query = select(schedules).order_by(
        schedules.c.next_run_at.nulls_first(), schedules.c.agent_type, schedules.c.agent_name
    )
    if address is not None:
        type_name = address.type_name
        chosen_query = chosen_query.where(schedules.c.agent_name == address.name)
    if type_name is not None:
        chosen_query = chosen_query.where(schedules.c.agent_type == type_name)
    if task_id is not None:
        chosen_query = chosen_query.where(schedules.c.task_id == task_id)
    chosen = chosen_query.limit(limit).subquery("chosen")
    youngest = (
        select(*(occurrences.c[name] for name in _LAST))
        .where(*(occurrences.c[name] == chosen.c[name] for name in ("agent_type", "agent_name", "task_id")))
        .order_by(occurrences.c.scheduled_for.desc())
        .limit(1)
        .lateral("youngest")
    )
    query = (
        select(chosen, youngest, submissions.c.status.label("submission_status"))
        .select_from(chosen)
        .outerjoin(youngest, chosen.c.task_id.is_not(None))
        .outerjoin(submissions, submissions.c.uid == youngest.c.submission_uid)
        .order_by(chosen.c.next_run_at.nulls_first(), chosen.c.agent_type, chosen.c.agent_name)
    )
    rows = database.run(lambda connection: connection.execute(query).mappings().all())
    return [(row_of(row), _last_of(row)) for row in rows]


_LAST = ("scheduled_for", "state", "late_ms", "missed_count", "submission_id", "submission_uid", "error")


def find(database: Database, address: Address, task_id: str) -> tuple[datetime, ScheduleRow | None]:
    """Return the database's time and one task, None when the agent has none with that id."""
    now, found = of_agents(database, address.type_name, [address.name])
    return now, next((row for row in found[address.name] if row.task_id == task_id), None)


def degraded(database: Database, address: Address) -> str | None:
    """Return why an agent's declarations could not be read, None when they could."""
    query = select(agents.c.degraded).where(
        agents.c.agent_type == address.type_name, agents.c.agent_name == address.name
    )
    return database.run(lambda connection: connection.execute(query).scalar_one_or_none())


def row_of(row: RowMapping | Mapping[str, Any]) -> ScheduleRow:
    """Return a task from a query."""
    declared = None
    if row["schedule_hash"] is not None:
        declared = Declared(**{name: row[name] for name in Declared.__slots__})
    return ScheduleRow(
        address=Address(row["agent_type"], row["agent_name"]),
        task_id=row["task_id"],
        declared=declared,
        generation=row["generation"],
        paused=row["paused"],
        invalid=row["invalid"],
        next_run_at=instant(row["next_run_at"]),
        due_at=instant(row["due_at"]),
    )


def _last_of(row: RowMapping) -> LastOccurrence | None:
    if row["scheduled_for"] is None:
        return None
    return LastOccurrence(
        instant(row["scheduled_for"]),
        row["state"],
        row["late_ms"],
        row["missed_count"],
        row["submission_id"],
        row["submission_status"],
        row["error"],
    )


def _named(address: Address, task_id: str) -> dict[str, Any]:
    return {"p_type": address.type_name, "p_name": address.name, "p_task": task_id}
