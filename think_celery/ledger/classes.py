"""What the ledger knows of agent classes, pauses, and the right to call an agent's status hooks."""

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from think_celery.core.address import Address
from think_celery.ledger.database import Database
from think_celery.ledger.rows import Row, row_of
from think_celery.ledger.schema import classes, submissions


def declare(database: Database, hooked: Mapping[str, bool]) -> None:
    """Say of classes, by type name, whether they override the status hook."""
    if not hooked:
        return
    rows = [{"agent_type": name, "hooked": value} for name, value in sorted(hooked.items())]
    statement = insert(classes).values(rows)
    changed = {"hooked": statement.excluded.hooked}
    statement = statement.on_conflict_do_update(
        index_elements=[classes.c.agent_type],
        set_=changed,
        where=classes.c.hooked.is_distinct_from(statement.excluded.hooked),
    )
    database.run(lambda connection: connection.execute(statement))


def pause_agent(database: Database, address: Address, *, paused: bool) -> bool:
    """Pause or resume one agent; False when it already was so."""
    agent = {"p_type": address.type_name, "p_name": address.name, "p_parent": address.parent}
    return bool(database.step("pause", {**agent, "p_paused": paused})["value"])


def pause_class(database: Database, type_name: str, *, paused: bool) -> bool:
    """Pause or resume every agent of a class; False when it already was so."""
    make = insert(classes).values(agent_type=type_name).on_conflict_do_nothing()
    change = (
        update(classes)
        .where(classes.c.agent_type == type_name, classes.c.paused.is_distinct_from(paused))
        .values(paused=paused)
    )
    database.run(lambda connection: connection.execute(make))
    return database.run(lambda connection: connection.execute(change)).rowcount > 0


def paused_classes(database: Database) -> list[str]:
    """Return the classes that are paused."""
    query = select(classes.c.agent_type).where(classes.c.paused).order_by(classes.c.agent_type)
    return list(database.run(lambda connection: connection.execute(query).scalars().all()))


def accepted_told(database: Database, uid: UUID) -> None:
    """Note that the hook has heard of the acceptance of a row that has not ended."""
    statement = (
        update(submissions)
        .where(submissions.c.uid == uid, submissions.c.completed_at.is_(None))
        .values(hook_due=False)
    )
    database.run(lambda connection: connection.execute(statement))


def take_hook(
    database: Database, address: Address, *, holder: UUID, lease: timedelta, done: Row | None
) -> Row | None:
    """Take the right to call the status hooks of an agent's rows, and return the first row that is due.

    Args:
        holder: Names the caller; the right ends with the lease, or when nothing is due.
        done: The row whose hook was just called, as the hook saw it.

    Returns:
        None when nothing is due or somebody else has the right.
    """
    parameters = {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_holder": holder,
        "p_for": lease,
        "p_done": None if done is None else done.uid,
        "p_done_ended": done is not None and done.submission.is_terminal,
    }
    answer = database.step("take_hook", parameters)
    return row_of(answer["submission"]) if answer["outcome"] == "due" else None
