"""Where one measurement takes place: shared servers, but a fresh schema, an empty broker and a checkpoint."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from think_celery.dev.servers import Addresses
from think_celery.ledger import migrate
from think_celery.settings import Settings, load_settings

SCHEMA = "bench"
FLOOR_TABLE = "floor_message"
_AGENTS = ("bench.agents",)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that producers and workers of one measurement are told; can be sent to another process."""

    settings: Settings
    floor_broker: str
    floor_backend: str
    folder: Path
    """Holds the record of bodies and the workers' logs."""

    @property
    def database_url(self) -> str:
        """PostgreSQL, for plain psycopg."""
        return self.settings.database_url.get_secret_value()

    def environment(self) -> dict[str, str]:
        """Return what worker processes read from their environment."""
        settings = self.settings
        return {
            "THINK_DATABASE_URL": self.database_url,
            "THINK_REDIS_URL": settings.redis_url.get_secret_value(),
            "THINK_BROKER_URL": settings.broker_url.get_secret_value(),
            "THINK_SCHEMA_NAME": settings.schema_name,
            "THINK_AGENTS": ",".join(settings.agents),
            "THINK_POOL": settings.pool,
            "THINK_CONCURRENCY": str(settings.concurrency),
            "BENCH_BROKER": self.floor_broker,
            "BENCH_BACKEND": self.floor_backend,
            "BENCH_RECORD": str(self.folder),
        }


def fresh(addresses: Addresses, folder: Path, *, pool: str = "threads", concurrency: int = 8) -> Site:
    """Empty both servers, make the ledger anew, and let PostgreSQL write out what came before."""
    base = addresses.redis_url.rpartition("/")[0]
    settings = load_settings(
        {},
        database_url=addresses.database_url,
        redis_url=f"{base}/0",
        broker_url=f"{base}/1",
        schema_name=SCHEMA,
        agents=_AGENTS,
        pool=pool,
        concurrency=concurrency,
    )
    with redis.Redis.from_url(addresses.redis_url) as client:
        client.flushall()
    with psycopg.connect(addresses.database_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"DROP TABLE IF EXISTS {FLOOR_TABLE}")
        connection.execute(
            f"CREATE TABLE {FLOOR_TABLE} "
            "(id bigserial PRIMARY KEY, key text NOT NULL, number int NOT NULL, body jsonb NOT NULL)"
        )
        migrate.upgrade(settings)
        connection.execute("CHECKPOINT")
    place = folder / f"site-{next(_numbers)}"
    place.mkdir()
    return Site(settings, f"{base}/2", f"{base}/3", place)
