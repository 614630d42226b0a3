"""Accept inside a caller's own transaction: the row commits or rolls back with the caller's data.

The row is written without a place in line and without touching the lane, so an open transaction disturbs no
other call. Once it has committed, `place` gives it both.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session

from think_celery.errors import InvalidInput
from think_celery.ledger.database import Database


def connection_of(given: object) -> Connection:
    """Return the SQLAlchemy connection to write through.

    Raises:
        InvalidInput: Neither a `Connection` nor a `Session`, or an asyncio one.
    """
    if isinstance(given, Connection):
        return given
    if isinstance(given, Session):
        return given.connection()
    sync = getattr(given, "sync_session", None) or getattr(given, "sync_connection", None)
    hint = "; pass its .sync_session or .sync_connection inside run_sync" if sync is not None else ""
    raise InvalidInput("connection", f"{type(given).__name__} is no SQLAlchemy Connection or Session{hint}")


def step(
    database: Database, connection: Connection, function: str, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Call a function of the ledger on the caller's connection, in the caller's transaction."""
    names = ", ".join(f"{name} => :{name}" for name in parameters)
    statement = text(f"SELECT {database.schema}.{function}({names})")
    answer: dict[str, Any] = connection.execute(statement, parameters).scalar_one()
    return answer


def after_commit(given: object, action: Callable[[], None]) -> None:
    """Call `action` when the caller's transaction commits.

    A Session's event comes after the commit, a bare Connection's just before it; so the action must look
    whether the row is visible, and look again.
    """
    if isinstance(given, Session):
        event.listen(given, "after_commit", lambda _: action(), once=True)
    elif isinstance(given, Connection):
        event.listen(given, "commit", lambda _: action(), once=True)
