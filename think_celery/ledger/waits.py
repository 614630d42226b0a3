"""Turns that wait for another agent, so that a circle of them is found."""

from uuid import UUID

from think_celery.core.address import Address
from think_celery.ledger.database import Database


def note(database: Database, wait_id: UUID, *, uid: UUID, agent: Address, waits_for: Address) -> list[str]:
    """Note that a turn waits, and return the circle that it closes.

    Returns:
        Addresses from the turn's agent on, the last of which waits for the first; empty when there is no
        circle, or when a younger wait of the circle is the one to give way.
    """
    parameters = {
        "p_wait": wait_id,
        "p_uid": uid,
        "p_type": agent.type_name,
        "p_name": agent.name,
        "p_for_type": waits_for.type_name,
        "p_for_name": waits_for.name,
    }
    return list(database.step("note_wait", parameters)["value"] or [])


def end(database: Database, wait_id: UUID) -> None:
    """Forget a wait."""
    database.step("end_wait", {"p_wait": wait_id})


def end_lost(database: Database) -> None:
    """Forget the waits of turns that have ended without doing so."""
    database.step("end_wait", {"p_wait": None})
