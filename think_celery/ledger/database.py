"""One process' way to PostgreSQL: a small pool, one statement per step, and whole-unit retries.

Connections run in AUTOCOMMIT: each step of the ledger is one function call and thereby one transaction and
one round trip. There is no pre-ping; a step that meets a dead connection is repeated as a whole, which is
safe because every step recognises its own repetition.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from think_celery.core.backoff import delay_seconds
from think_celery.errors import LedgerUnavailable, SchemaMismatch
from think_celery.settings import Settings

T = TypeVar("T")
_CLOSE_SECONDS = 2.0
_MISSING = {"42P01", "3F000", "42883"}  # no such table, schema, function
_PASSING = {"57P01", "57P02", "57P03", "53300", "40001", "40P01", "55P03"}


class Database:
    """The ledger's connections of one process; made after fork, closed at exit.

    Args:
        settings: Where PostgreSQL is, the schema's name, and the bounds on waiting.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.schema = settings.schema_name
        self._timeout = settings.database_timeout
        self._closing = threading.Event()
        self.engine = _engine(settings)

    def sql(self, statement: str) -> str:
        """Return the statement with the schema's name in place of `{schema}`."""
        return statement.replace("{schema}", self.schema)

    def step(self, function: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call one function of the ledger and return its JSON answer.

        Args:
            function: Name within the ledger's schema.
            parameters: Arguments by name.

        Raises:
            LedgerUnavailable: PostgreSQL did not answer within `database_timeout`.
            SchemaMismatch: The function or its tables are missing.
        """
        statement = _statement(f"{self.schema}.{function}", tuple(parameters))
        answer = self._repeat(lambda: self._call(statement, parameters))
        return answer if isinstance(answer, dict) else {"value": answer}

    def _call(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        # Straight to the driver: SQLAlchemy's result machinery takes as long as the round trip itself.
        pooled = self.engine.raw_connection()
        try:
            row = _cursor(pooled).execute(statement, parameters).fetchone()
            assert row is not None, "a function call gives one row"
            return row[0]
        except psycopg.Error as error:
            if pooled.driver_connection is None or pooled.driver_connection.closed:
                pooled.invalidate(error)
            raise
        finally:
            pooled.close()

    def run(self, unit: Callable[[Connection], T]) -> T:
        """Run an idempotent unit on a pooled connection, again and again while PostgreSQL is away.

        Raises:
            LedgerUnavailable: It stayed away for `database_timeout` seconds.
            SchemaMismatch: A table or function is missing.
        """

        def connected() -> T:
            with self.engine.connect() as connection:
                return unit(connection)

        return self._repeat(connected)

    def _repeat(self, action: Callable[[], T]) -> T:
        end = time.monotonic() + self._timeout
        tries = 0
        while True:
            try:
                return action()
            except PoolTimeout as error:
                size = self.settings.database_pool_size
                raise LedgerUnavailable(
                    f"all {size} connections of this process were busy for {self._timeout:g} s; "
                    "raise THINK_DATABASE_POOL_SIZE"
                ) from error
            except (DBAPIError, psycopg.Error) as error:
                if not _may_pass(error):
                    raise _translated(error) from error
                tries += 1
                wait = delay_seconds(tries, base=0.05, limit=1.0)
                if time.monotonic() + wait > end or self._closing.wait(wait):
                    raise LedgerUnavailable(
                        f"PostgreSQL did not answer within {self._timeout:g} s: {_first_line(error)}"
                    ) from error

    def close(self) -> None:
        """Close every connection; waiting calls end with LedgerUnavailable, running ones get a moment."""
        self._closing.set()
        pool, end, pause = self.engine.pool, time.monotonic() + _CLOSE_SECONDS, threading.Event()
        while isinstance(pool, QueuePool) and pool.checkedout() and time.monotonic() < end:
            pause.wait(0.01)
        self.engine.dispose()


def _engine(settings: Settings) -> Engine:
    url = make_url(settings.database_url.get_secret_value()).set(drivername="postgresql+psycopg")
    return create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        poolclass=QueuePool,
        pool_size=settings.database_pool_size,
        max_overflow=0,
        pool_timeout=settings.database_timeout,
        pool_use_lifo=True,
        pool_reset_on_return=None,  # in AUTOCOMMIT there is nothing to roll back
        connect_args={
            "connect_timeout": max(2, int(settings.database_timeout // 2)),
            "application_name": "think-celery",
            "keepalives_idle": 30,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        },
    ).execution_options(schema_translate_map={None: settings.schema_name})


@lru_cache
def _statement(function: str, names: tuple[str, ...]) -> str:
    return f"SELECT {function}({', '.join(f'{name} => %({name})s' for name in names)})"


def _cursor(pooled: PoolProxiedConnection) -> psycopg.Cursor[tuple[Any]]:
    """Return the one cursor of a connection: a new one would have to learn again how to pass each type."""
    known: dict[Any, Any] = pooled.info  # emptied when the pool replaces the connection
    if "cursor" not in known:
        known["cursor"] = pooled.cursor()
    cursor: psycopg.Cursor[tuple[Any]] = known["cursor"]
    return cursor


def is_passing(error: BaseException) -> bool:
    """True for an error of anybody's use of a database that says: not now, try again."""
    return isinstance(error, DBAPIError | psycopg.Error) and _may_pass(error)


def _may_pass(error: DBAPIError | psycopg.Error) -> bool:
    cause = _cause(error)
    state = getattr(cause, "sqlstate", None)
    if state is None:  # no answer from a server: refused, reset, timed out
        return isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
    return invalidated or state in _PASSING or state.startswith("08")


def _translated(error: DBAPIError | psycopg.Error) -> Exception:
    state = getattr(_cause(error), "sqlstate", None)
    if state in _MISSING:
        return SchemaMismatch(
            f"the ledger's schema is incomplete ({_first_line(error)}); run `think-celery migrate`"
        )
    if state is not None and state[:2] in {"28", "3D"}:  # wrong password, no such database
        return LedgerUnavailable(f"PostgreSQL refused the connection: {_first_line(error)}")
    return error


def _first_line(error: DBAPIError | psycopg.Error) -> str:
    return str(_cause(error)).strip().split("\n", 1)[0]


def _cause(error: DBAPIError | psycopg.Error) -> BaseException:
    return error.orig or error if isinstance(error, DBAPIError) else error
