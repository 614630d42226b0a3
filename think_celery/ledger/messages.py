"""Read the transcripts, append to them without a turn, and tell whether they are about to grow."""

from typing import Any

from sqlalchemy import ColumnElement, Select, Table, not_, or_, select

from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.ledger.database import Database
from think_celery.ledger.schema import agents, messages, submissions


def transcript(database: Database, address: Address) -> list[dict[str, Any]]:
    """Return an agent's messages in order, each in AI SDK form; empty for an unknown agent."""
    query = (
        select(messages.c.content)
        .where(messages.c.agent_type == address.type_name, messages.c.agent_name == address.name)
        .order_by(messages.c.seq)
    )
    return list(database.run(lambda connection: connection.execute(query).scalars().all()))


def get(database: Database, address: Address, *, message_id: str) -> dict[str, Any] | None:
    """Return one message, None when the agent has none with that id."""
    query = select(messages.c.content).where(
        messages.c.agent_type == address.type_name,
        messages.c.agent_name == address.name,
        messages.c.message_id == message_id,
    )
    return database.run(lambda connection: connection.execute(query).scalar_one_or_none())


def add(database: Database, address: Address, given: str, *, upsert: bool) -> int:
    """Append messages at once and return how many were new.

    Args:
        given: JSON text of the list.
        upsert: Replace those whose id is known, where they stand, instead of leaving them.
    """
    parameters = {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_messages": given,
        "p_upsert": upsert,
        "p_parent": address.parent,
    }
    return int(database.step("add_messages", parameters)["value"])


def last_role(database: Database, address: Address) -> str | None:
    """Return who spoke last in the conversation, None when it is empty."""
    query = (
        select(messages.c.content["role"].astext)
        .where(messages.c.agent_type == address.type_name, messages.c.agent_name == address.name)
        .order_by(messages.c.seq.desc())
        .limit(1)
    )
    return database.run(lambda connection: connection.execute(query).scalar_one_or_none())


def has_open_approval(database: Database, address: Address) -> bool:
    """True when a tool call of the conversation waits for somebody's approval."""
    query = select(_open_approval(address))
    return bool(database.run(lambda connection: connection.execute(query).scalar_one()))


def is_still(database: Database, address: Address) -> bool:
    """True when no turn of an agent waits, runs or is about to stop, and no tool call waits for approval.

    One statement, so that nothing can move from one place to another between two looks.
    """
    active = _of(submissions, address).where(submissions.c.status.in_([Status.PENDING, Status.RUNNING]))
    held = _of(agents, address).where(agents.c.active_uid.is_not(None))
    query = select(not_(or_(active.exists(), held.exists(), _open_approval(address))))
    return bool(database.run(lambda connection: connection.execute(query).scalar_one()))


def _open_approval(address: Address) -> ColumnElement[bool]:
    asked = messages.c.content.contains({"parts": [{"state": "approval-requested"}]})
    return _of(messages, address).where(asked).exists()


def _of(table: Table, address: Address) -> Select[tuple[str]]:
    return select(table.c.agent_name).where(
        table.c.agent_type == address.type_name, table.c.agent_name == address.name
    )
