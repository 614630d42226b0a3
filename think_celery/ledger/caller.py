"""Accept inside a caller's own transaction: the row commits or rolls back with the caller's data.

The row is written without a place in line and without touching the lane, so an open transaction disturbs no
other call. Once it has committed, `place` gives it both.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, text

from think_celery.errors import InvalidInput
from think_celery.ledger.database import Database

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, SessionTransaction

_waiting: "WeakKeyDictionary[Connection | Session, list[Callable[[], None]]]" = WeakKeyDictionary()
"""What is to be done after the commits of callers' own transactions."""


def connection_of(given: object) -> Connection:
    """Return the SQLAlchemy connection to write through.

    Raises:
        InvalidInput: Neither a `Connection` nor a `Session`, or an asyncio one.
    """
    if isinstance(given, Connection):
        return given
    if _is_session(given):
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
    if not (isinstance(given, Connection) or _is_session(given)):
        return
    if given not in _waiting:
        _waiting[given] = []
        _listen(given)
    _waiting[given].append(action)


def _listen(given: "Connection | Session") -> None:
    """Once for each: listeners cannot be taken off while they are called, so they would gather."""
    if isinstance(given, Connection):
        event.listen(given, "commit", _act)
        event.listen(given, "rollback", _forget)
    else:
        event.listen(given, "after_commit", _session_committed)
        event.listen(given, "after_transaction_end", _session_ended)


def _session_committed(session: "Session") -> None:
    if not session.in_nested_transaction():  # the end of a savepoint is no commit
        _act(session)


def _session_ended(session: "Session", transaction: "SessionTransaction") -> None:
    if transaction.parent is None:
        _forget(session)


def _act(given: "Connection | Session") -> None:
    actions = list(_waiting[given])
    _forget(given)
    for action in actions:
        action()


def _forget(given: "Connection | Session") -> None:
    _waiting[given].clear()


def _is_session(given: object) -> "TypeGuard[Session]":
    from sqlalchemy.orm import Session  # a tenth of the time that `import think_celery` would take

    return isinstance(given, Session)
