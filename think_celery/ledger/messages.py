"""Read the transcripts."""

from typing import Any

from sqlalchemy import select

from think_celery.core.address import Address
from think_celery.ledger.database import Database
from think_celery.ledger.schema import messages


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
