"""Lanes as people look at them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row as SqlRow
from sqlalchemy import and_, func, select

from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.ledger.database import Database
from think_celery.ledger.rows import instant
from think_celery.ledger.schema import agents, submissions


@dataclass(frozen=True, slots=True)
class Lane:
    """An agent's lane as people look at it."""

    address: Address
    pending: int
    oldest_pending_at: datetime | None
    running: str | None
    """Submission id of the row that runs."""
    used_at: datetime
    paused: bool


def survey(database: Database, *, limit: int) -> list[Lane]:
    """Return lanes for people: those with work first, then the most recently used."""
    head = and_(
        submissions.c.agent_type == agents.c.agent_type,
        submissions.c.agent_name == agents.c.agent_name,
        submissions.c.position >= agents.c.head_position,
        submissions.c.status == Status.PENDING.value,
    )
    depth = select(func.count().label("pending"), func.min(submissions.c.created_at).label("oldest")).where(
        head
    )
    waiting = depth.lateral("waiting")
    running = submissions.alias("running")
    query = (
        select(agents, waiting.c.pending, waiting.c.oldest, running.c.submission_id)
        .select_from(agents)
        .join(waiting, waiting.c.pending >= 0)
        .outerjoin(running, running.c.uid == agents.c.active_uid)
        .order_by(
            (agents.c.active_uid.is_not(None) | (waiting.c.pending > 0)).desc(), agents.c.used_at.desc()
        )
        .limit(limit)
    )
    return [_lane_of(row) for row in database.run(lambda connection: connection.execute(query).all())]


def _lane_of(row: SqlRow[Any]) -> Lane:
    address = Address(row.agent_type, row.agent_name)
    return Lane(
        address, row.pending, instant(row.oldest), row.submission_id, instant(row.used_at), row.paused
    )
