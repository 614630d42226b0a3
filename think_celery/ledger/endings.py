"""Cancel, reset and delete: what callers do to rows that they have handed over.

Each call is one transaction; the answers come out of the writes themselves.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, literal, select

from think_celery.core.address import Address
from think_celery.core.submission import TERMINAL, Status
from think_celery.ledger.database import Database
from think_celery.ledger.rows import Ended, Row, ended_of, row_of
from think_celery.ledger.schema import agents, submissions

_PRUNE_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel found: `ended` when it ended the row, `terminal` when that had happened before."""

    ended: Ended | None
    terminal: Row | None


def cancel(
    database: Database, address: Address, *, submission_id: str, reason: str | None, call: UUID
) -> Cancelled:
    """Abort a row that waits or runs; both fields are None for an unknown id (S 1.5).

    Args:
        call: Names the call, so that its repetition after a lost answer gets the same answer.
    """
    parameters = {
        **_agent(address),
        "p_submission_id": submission_id,
        "p_reason": reason,
        "p_call": call,
    }
    answer = database.step("cancel", parameters)
    if answer["outcome"] == "cancelled":
        return Cancelled(ended_of(answer), None)
    if answer["outcome"] == "already_terminal":
        return Cancelled(None, row_of(answer["submission"]))
    return Cancelled(None, None)


def cancel_all(
    database: Database, address: Address, *, metadata: dict[str, Any] | None, reason: str | None
) -> list[Ended]:
    """Abort every row of an agent that waits or runs, in their order.

    Args:
        metadata: Only rows whose metadata contains this; None for all.
    """
    wanted = None if metadata is None else json.dumps(metadata)
    answer = database.step("cancel_all", {**_agent(address), "p_metadata": wanted, "p_reason": reason})
    return [ended_of(ended) for ended in answer["ended"]]


def reset(database: Database, address: Address, *, note: str, messages: bool) -> list[Ended]:
    """Skip what waits, end what runs, start a new generation; `messages`: the conversation goes (S 5)."""
    answer = database.step("reset", {**_agent(address), "p_note": note, "p_messages": messages})
    return [ended_of(ended) for ended in answer["ended"]]


def late(database: Database, *, limit: int) -> list[Address]:
    """Return agents with rows that wait although they may not start any more."""
    rows = (
        select(submissions.c.agent_type, submissions.c.agent_name)
        .where(submissions.c.not_after < func.clock_timestamp(), submissions.c.status == Status.PENDING.value)
        .where(submissions.c.position.is_not(None))
        .limit(limit)
        .subquery()
    )
    query = select(rows).distinct().order_by(rows.c.agent_type, rows.c.agent_name)
    found = database.run(lambda connection: connection.execute(query).all())
    return [Address(row.agent_type, row.agent_name) for row in found]


def expire(database: Database, address: Address) -> list[Ended]:
    """End an agent's rows that may not start any more."""
    return [ended_of(ended) for ended in database.step("expire", _agent(address))["ended"]]


def delete_one(database: Database, address: Address, *, submission_id: str) -> Row | None:
    """Delete a terminal row; None when it is unknown or still waits or runs (S 1.7)."""
    rows = _delete(database, address, submission_id=submission_id, statuses=TERMINAL, before=None, limit=1)
    return rows[0] if rows else None


def delete_many(
    database: Database, address: Address, *, statuses: Sequence[Status], before: datetime | None, limit: int
) -> list[Row]:
    """Delete the oldest terminal rows of these statuses that ended before a time (S 1.8)."""
    return _delete(database, address, submission_id=None, statuses=statuses, before=before, limit=limit)


def delete_agent(database: Database, address: Address) -> tuple[bool, list[Row]]:
    """Delete everything about an agent; returns whether there was one, and its rows that waited or ran."""
    answer = database.step("delete_agent", _agent(address))
    return answer["existed"], [row_of(row) for row in answer["active"]]


def descendants(database: Database, address: Address) -> list[Address]:
    """Return an agent's sub-agents and theirs, each after its own: what is left of them is found again."""
    below = (
        select(agents.c.agent_type, agents.c.agent_name, literal(1).label("depth"))
        .where(agents.c.parent == str(address))
        .cte(recursive=True)
    )
    child = select(agents.c.agent_type, agents.c.agent_name, below.c.depth + 1).where(
        agents.c.parent == below.c.agent_type + "/" + below.c.agent_name
    )
    family = below.union_all(child)
    query = select(family).order_by(family.c.depth.desc())
    rows = database.run(lambda connection: connection.execute(query).all())
    return [Address(row.agent_type, row.agent_name) for row in rows]


def turns_of(database: Database, address: Address) -> list[UUID]:
    """Return the uids of an agent's rows, for removing their streams."""
    query = select(submissions.c.uid).where(
        submissions.c.agent_type == address.type_name, submissions.c.agent_name == address.name
    )
    return list(database.run(lambda connection: connection.execute(query).scalars().all()))


def prune(database: Database, *, older_than: timedelta) -> int:
    """Delete one batch of rows of all agents that ended longer ago; returns how many."""
    old = (
        select(submissions.c.uid)
        .where(
            submissions.c.completed_at < func.clock_timestamp() - older_than,
            ~submissions.c.hook_due,
            ~submissions.c.response_due,
        )
        .limit(_PRUNE_BATCH)
    )
    statement = delete(submissions).where(submissions.c.uid.in_(old), submissions.c.completed_at.is_not(None))
    return database.run(lambda connection: connection.execute(statement)).rowcount


def _delete(
    database: Database,
    address: Address,
    *,
    submission_id: str | None,
    statuses: Sequence[Status] | frozenset[Status],
    before: datetime | None,
    limit: int,
) -> list[Row]:
    parameters = {
        **_agent(address),
        "p_submission_id": submission_id,
        "p_statuses": [status.value for status in statuses],
        "p_before": before,
        "p_limit": limit,
    }
    return [row_of(row) for row in database.step("delete_ended", parameters)["deleted"]]


def _agent(address: Address) -> dict[str, Any]:
    return {"p_type": address.type_name, "p_name": address.name}
