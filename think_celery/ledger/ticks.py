"""Last signs of life of what has to come again and again; and how late the schedules are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from think_celery.ledger.database import Database
from think_celery.ledger.rows import instant
from think_celery.ledger.schema import schedules, ticks


@dataclass(frozen=True, slots=True)
class Lateness:
    """How far the schedules are behind.

    Attributes:
        active: Tasks that can come due.
        ticked_at: Last tick of a beat that a worker has answered; None when there was none.
        oldest_due_at: The longest overdue task, None when nothing is due.
        now: The database's time.
    """

    active: bool
    ticked_at: datetime | None
    oldest_due_at: datetime | None
    now: datetime


HALTED = "halted"
"""Named like a sign of life: schedules stand still since then, until somebody confirms."""


def tick(database: Database, name: str) -> datetime:
    """Note a sign of life and return its time."""
    statement = insert(ticks).values(name=name, ticked_at=func.clock_timestamp())
    statement = statement.on_conflict_do_update(
        index_elements=[ticks.c.name], set_={"ticked_at": func.clock_timestamp()}
    )
    written = statement.returning(ticks.c.ticked_at)
    at: datetime = database.run(lambda connection: connection.execute(written).scalar_one())
    return instant(at)


def ticked(database: Database) -> dict[str, datetime]:
    """Return the last signs of life by name."""
    rows = database.run(lambda connection: connection.execute(select(ticks)).all())
    return {row.name: instant(row.ticked_at) for row in rows}


def resume(database: Database) -> bool:
    """Let schedules go on; False when they did not stand still."""
    statement = delete(ticks).where(ticks.c.name == HALTED)
    return database.run(lambda connection: connection.execute(statement)).rowcount > 0


def lateness(database: Database, name: str, *, type_names: Sequence[str] | None = None) -> Lateness:
    """Return how far the schedules are behind.

    Args:
        name: Of the sign of life.
        type_names: Only of these classes.
    """
    live = schedules.c.paused.is_(False) & schedules.c.invalid.is_(None)
    if type_names is not None:
        live &= schedules.c.agent_type.in_(type_names)
    due = select(func.min(schedules.c.due_at)).where(live, schedules.c.due_at <= func.now())
    query = select(
        select(schedules.c.task_id).where(live).exists().label("active"),
        select(ticks.c.ticked_at).where(ticks.c.name == name).scalar_subquery().label("ticked_at"),
        due.scalar_subquery().label("oldest"),
        func.now().label("now"),
    )
    row = database.run(lambda connection: connection.execute(query).one())
    return Lateness(row.active, instant(row.ticked_at), instant(row.oldest), instant(row.now))


def is_overdue(database: Database, type_names: Sequence[str], *, by: timedelta) -> bool:
    """True when a task of one of these classes has been due for so long and nobody has dispatched it."""
    query = select(
        select(schedules.c.task_id)
        .where(
            schedules.c.agent_type.in_(type_names),
            ~schedules.c.paused,
            schedules.c.invalid.is_(None),
            schedules.c.due_at <= func.now() - by,
        )
        .exists()
    )
    return bool(database.run(lambda connection: connection.execute(query).scalar_one()))
