"""What declarations make of agents' schedules: which agents to compare, and what to write."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert

from think_celery.ledger.database import Database
from think_celery.ledger.schedules import Declared
from think_celery.ledger.schema import agents, classes, schedules


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an agent's schedules by its declarations.

    Attributes:
        change: `put`, `drop` or `bad`.
        generation: Of the row that was seen, None when there was none.
        next_run_at: When it is due from now on; None leaves that as it is.
        fresh: Its times begin anew; what was due by the old ones will not run.
        reason: Of `bad`.
    """

    change: str
    task_id: str
    generation: int | None
    declared: Declared | None = None
    next_run_at: datetime | None = None
    fresh: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reconcile writes for one agent.

    Attributes:
        armed: Names the declarations that the agent was compared with; None keeps the last name.
        degraded: Why its declarations could not be read, None when they could.
    """

    name: str
    changes: Sequence[Change] = ()
    armed: str | None = None
    degraded: str | None = None


@dataclass(frozen=True, slots=True)
class Armed:
    """Which agents were left alone by a reconcile."""

    newer: set[str] = field(default_factory=set)
    """A later build has reconciled them."""
    raced: set[str] = field(default_factory=set)
    """A row had changed since it was read; read again and repeat."""


def begin_arming(database: Database, type_name: str, *, declared: str, every: timedelta) -> bool:
    """Take the work of comparing all agents of a class with its declarations.

    Returns:
        False when that was begun less than `every` ago with the same declarations, by whomever.
    """
    now = func.clock_timestamp()
    statement = insert(classes).values(
        agent_type=type_name, hooked=False, paused=False, declared=declared, armed_at=now
    )
    statement = statement.on_conflict_do_update(
        index_elements=[classes.c.agent_type],
        set_={"declared": declared, "armed_at": now},
        where=or_(
            classes.c.declared.is_distinct_from(declared),
            classes.c.armed_at.is_(None),
            classes.c.armed_at < now - every,
        ),
    )
    taken = statement.returning(classes.c.agent_type)
    return database.run(lambda connection: connection.execute(taken).first()) is not None


def children(database: Database, type_name: str, names: Sequence[str]) -> set[str]:
    """Return which of these agents of a class belong to another agent."""
    query = select(agents.c.agent_name).where(
        agents.c.agent_type == type_name, agents.c.agent_name.in_(names), agents.c.parent.is_not(None)
    )
    return set(database.run(lambda connection: connection.execute(query).scalars().all()))


def unarmed(
    database: Database, type_name: str, *, armed: str, after: str, children_too: bool, limit: int
) -> list[str]:
    """Return names of agents of a class, in order, that were last compared with other declarations.

    Args:
        armed: Names the present declarations.
        after: Only names behind this one.
        children_too: Also agents that belong to another one.
    """
    query = (
        select(agents.c.agent_name)
        .where(
            agents.c.agent_type == type_name,
            agents.c.agent_name > after,
            agents.c.armed.is_distinct_from(armed),
        )
        .order_by(agents.c.agent_name)
        .limit(limit)
    )
    if not children_too:
        query = query.where(agents.c.parent.is_(None))
    return list(database.run(lambda connection: connection.execute(query).scalars().all()))


def has_agents(database: Database, type_name: str) -> bool:
    """True when the ledger knows an agent of the class that belongs to no other."""
    query = select(
        select(agents.c.agent_name)
        .where(agents.c.agent_type == type_name, agents.c.parent.is_(None))
        .exists()
    )
    return bool(database.run(lambda connection: connection.execute(query).scalar_one()))


def scheduled_names(database: Database, type_name: str, *, after: str, limit: int) -> list[str]:
    """Return names of agents of a class that have scheduled tasks, in order, behind one name."""
    query = (
        select(schedules.c.agent_name)
        .where(schedules.c.agent_type == type_name, schedules.c.agent_name > after)
        .distinct()
        .order_by(schedules.c.agent_name)
        .limit(limit)
    )
    return list(database.run(lambda connection: connection.execute(query).scalars().all()))


def arm(database: Database, type_name: str, plans: Sequence[Plan], *, build: int) -> Armed:
    """Write what a reconcile decided for agents of one class.

    Args:
        build: Number of this program's version; agents that a higher one has reconciled are left alone.
    """
    told = json.dumps([_plan_json(plan) for plan in plans])
    answer = database.step("arm", {"p_type": type_name, "p_build": build, "p_agents": told})
    return Armed(set(answer["newer"]), set(answer["raced"]))


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "armed": plan.armed,
        "degraded": plan.degraded,
        "changes": [
            {
                "change": change.change,
                "task_id": change.task_id,
                "generation": change.generation,
                "row": None if change.declared is None else asdict(change.declared),
                "next_run_at": None if change.next_run_at is None else change.next_run_at.isoformat(),
                "fresh": change.fresh,
                "reason": change.reason,
            }
            for change in plan.changes
        ],
    }
