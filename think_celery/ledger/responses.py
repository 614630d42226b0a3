"""The right to call an agent's response hooks, and the rows whose hook is due."""

from typing import Any
from uuid import UUID

from think_celery.core.address import Address
from think_celery.ledger.database import Database
from think_celery.ledger.rows import Row, row_of


def take(
    database: Database, address: Address, *, holder: UUID, done: UUID | None
) -> tuple[Row, dict[str, Any] | None] | None:
    """Take the right to call an agent's response hooks, and return the first row that is due.

    Args:
        holder: The process; the right is its own until nothing is due or it dies.
        done: The row whose hook was just called.

    Returns:
        The row and its stored message; None when nothing is due or a living process has the right.
    """
    parameters = {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_holder": holder,
        "p_lease": database.settings.lease,
        "p_done": done,
    }
    answer = database.step("take_response", parameters)
    return (row_of(answer["submission"]), answer["message"]) if answer["outcome"] == "due" else None
