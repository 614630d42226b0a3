"""Whether workers live. A health check asks often, so this module loads neither Celery nor Alembic."""

import socket
from collections.abc import Iterator

from think_celery.cli.context import adopt_stack
from think_celery.cli.finding import Finding
from think_celery.errors import ServiceError
from think_celery.ledger import workers
from think_celery.ledger.database import Database
from think_celery.settings import Settings, load_settings

_PATIENCE_SECONDS = 4.0


def findings() -> Iterator[Finding]:
    """Look whether a worker process of this host is alive, and at nothing else.

    Raises:
        InvalidSettings: A setting cannot be used.
        StackNotRunning: Nothing says where the servers are.
    """
    adopt_stack()
    database = Database(impatient(load_settings()))
    try:
        yield _here(workers.present(database))
    except ServiceError as error:
        yield Finding("worker", "fail", str(error))
    finally:
        database.close()


def everybody(database: Database) -> Finding:
    """Say how many worker processes of all hosts live and what they serve."""
    alive = [presence for presence in workers.present(database) if presence.alive]
    if not alive:
        return Finding(
            "workers",
            "warn",
            "none alive, so submissions wait; start one with `think-celery up` or `think-celery worker`",
        )
    draining = sum(presence.draining for presence in alive)
    text = f"{len(alive)} alive" + (f", {draining} of them ending" if draining else "")
    types = _types(alive)
    return Finding("workers", "ok" if types else "warn", f"{text}; serving {types or 'no agent class'}")


def impatient(settings: Settings) -> Settings:
    """Return settings for somebody who waits for the answer."""
    return settings.model_copy(update={"database_timeout": min(settings.database_timeout, _PATIENCE_SECONDS)})


def _here(known: list[workers.Presence]) -> Finding:
    host = socket.gethostname()
    here = [presence for presence in known if presence.worker.host == host]
    alive = [presence for presence in here if presence.alive]
    if alive:
        processes = "process" if len(alive) == 1 else "processes"
        text = f"{len(alive)} {processes} alive on {host}, serving {_types(alive) or 'no agent class'}"
        return Finding("worker", "ok", text)
    last = max((presence.heartbeat_at for presence in here), default=None)
    silent = "" if last is None else f"; the last sign of life was {last:%Y-%m-%d %H:%M:%S} UTC"
    return Finding("worker", "fail", f"none alive on {host}{silent}")


def _types(alive: list[workers.Presence]) -> str:
    return ", ".join(sorted({name for presence in alive for name in presence.worker.agent_types}))
