"""The outbox of finish webhooks: rows are written by the step that ends a submission, and taken from here.

A claim is a lease: the row is due again when it ends, so whoever dies with it leaves it to others. The
attempt is counted before it is made, and its number guards what is written about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import delete, exists, func, select, update

from think_celery.ledger.database import Database
from think_celery.ledger.rows import instant
from think_celery.ledger.schema import webhooks


@dataclass(frozen=True, slots=True)
class Due:
    """One claimed attempt at telling a receiver."""

    webhook_id: UUID
    url: str
    row: Mapping[str, Any]
    """The submission's row as it was when it ended, in the ledger's own form."""
    attempts: int
    """Number of this attempt, from 1."""
    claimed_at: datetime


def is_due(database: Database) -> bool:
    """Return whether something waits to be told now."""
    query = select(exists().where(webhooks.c.due_at <= func.now()))
    return bool(database.run(lambda connection: connection.execute(query).scalar_one()))


def claim(database: Database, *, lease: timedelta, limit: int) -> list[Due]:
    """Take what is due, the oldest first; nobody else gets it before the lease ends."""
    chosen = (
        select(webhooks.c.webhook_id)
        # Not clock_timestamp(), which is volatile: the index could not be used.
        .where(webhooks.c.due_at <= func.now())
        .order_by(webhooks.c.due_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    statement = (
        update(webhooks)
        .where(webhooks.c.webhook_id == chosen.c.webhook_id)
        .values(due_at=func.now() + lease, attempts=webhooks.c.attempts + 1)
        .returning(webhooks, func.now().label("claimed_at"))
    )
    rows = database.run(lambda connection: connection.execute(statement).mappings().all())
    return [
        Due(row["webhook_id"], row["url"], row["payload"], row["attempts"], instant(row["claimed_at"]))
        for row in sorted(rows, key=lambda row: row["created_at"])
    ]


def finish(database: Database, webhook_id: UUID) -> None:
    """Forget a webhook: it was delivered, or never can be."""
    statement = delete(webhooks).where(webhooks.c.webhook_id == webhook_id)
    database.run(lambda connection: connection.execute(statement))


def postpone(database: Database, due: Due, *, error: str, wait: timedelta, give_up: timedelta) -> bool:
    """Note a failed attempt; somebody tries again after `wait`.

    Args:
        error: What went wrong.
        give_up: Age of the webhook from which on nobody tries again.

    Returns:
        True when it was given up, and is gone. An attempt whose lease ended writes nothing.
    """
    mine = (webhooks.c.webhook_id == due.webhook_id, webhooks.c.attempts == due.attempts)
    old = delete(webhooks).where(*mine, webhooks.c.created_at <= func.now() - give_up)
    if database.run(lambda connection: connection.execute(old)).rowcount:
        return True
    later = update(webhooks).where(*mine).values(error=error, due_at=func.now() + wait)
    database.run(lambda connection: connection.execute(later))
    return False
