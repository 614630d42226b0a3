"""Signs of life of the worker processes; the database's clock measures all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from think_celery.ledger.database import Database
from think_celery.ledger.rows import instant
from think_celery.ledger.schema import agents, workers

_FORGET_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process as it introduces itself."""

    worker_id: UUID
    host: str
    pid: int
    pool: str
    version: str
    agent_types: Sequence[str]


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker process as others see it."""

    worker: Worker
    alive: bool
    draining: bool
    started_at: datetime
    heartbeat_at: datetime
    consumed_at: datetime | None


def beat(database: Database, worker: Worker, *, consumed: bool) -> None:
    """Renew a process' lease; the first beat introduces it.

    Args:
        consumed: The process answered a bell since its last beat.
    """
    now = func.clock_timestamp()
    values = {
        "worker_id": worker.worker_id,
        "host": worker.host,
        "pid": worker.pid,
        "pool": worker.pool,
        "version": worker.version,
        "agent_types": list(worker.agent_types),
        "draining": False,
        "started_at": now,
    }
    changes = {"heartbeat_at": now, "agent_types": list(worker.agent_types)}
    if consumed:
        changes["consumed_at"] = now
    statement = insert(workers).values(**values, **{k: v for k, v in changes.items() if k not in values})
    statement = statement.on_conflict_do_update(index_elements=[workers.c.worker_id], set_=changes)
    database.run(lambda connection: connection.execute(statement))


def leave(database: Database, worker_id: UUID) -> None:
    """Remove a process that ends in order; lanes it still holds become orphans at once."""
    statement = delete(workers).where(workers.c.worker_id == worker_id)
    database.run(lambda connection: connection.execute(statement))


def drain(database: Database, worker_id: UUID) -> None:
    """Mark a process that takes no further turns."""
    statement = update(workers).where(workers.c.worker_id == worker_id).values(draining=True)
    database.run(lambda connection: connection.execute(statement))


def present(database: Database) -> list[Presence]:
    """Return the processes known, the youngest first; `alive` means a beat within the lease."""
    alive = (workers.c.heartbeat_at >= func.clock_timestamp() - database.settings.lease).label("alive")
    query = select(workers, alive).order_by(workers.c.started_at.desc())
    rows = database.run(lambda connection: connection.execute(query).all())
    return [
        Presence(
            Worker(row.worker_id, row.host, row.pid, row.pool, row.version, row.agent_types),
            row.alive,
            row.draining,
            instant(row.started_at),
            instant(row.heartbeat_at),
            instant(row.consumed_at),
        )
        for row in rows
    ]


def forget_dead(database: Database) -> int:
    """Delete processes that were silent for a day and hold no lane; returns how many."""
    statement = delete(workers).where(
        workers.c.heartbeat_at < func.clock_timestamp() - _FORGET_AFTER,
        ~select(agents.c.active_uid).where(agents.c.active_worker == workers.c.worker_id).exists(),
    )
    return database.run(lambda connection: connection.execute(statement)).rowcount
