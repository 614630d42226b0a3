"""The steps of a lane: claim, apply, settle, rescue; and which lanes workers should hear.

Each function is one statement. Every write by a turn's worker names the fence of its claim; the answer says
whether the write counted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import func, or_, select

from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.ledger.database import Database
from think_celery.ledger.rows import Ended, Row, ended_of, row_of
from think_celery.ledger.schema import agents, submissions, workers


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one row: it holds until the fence of the lane grows."""

    row: Row
    fence: int
    ended: tuple[Ended, ...] = ()
    """Rows ahead of it that might not start any more, and were ended by this claim."""
    hooks_due: bool = False
    """Status hooks of ended rows wait to be called."""
    responses_due: bool = False
    """Response hooks of ended rows wait to be called."""
    application: "Application | None" = None
    """The messages are applied already."""
    armed: str | None = None
    """The declarations of schedules that the agent was last compared with."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing may run now.

    The lane is empty (`idle`), `paused`, or its head waits: for its time (`early`), or for the process that
    asked for it and runs it itself (`reserved`).
    """

    reason: str
    ended: tuple[Ended, ...] = ()
    hooks_due: bool = False
    responses_due: bool = False
    rang: "Rang | None" = None


@dataclass(frozen=True, slots=True)
class Rang:
    """How a row had ended whose bell found nothing to run."""

    submission_id: str
    status: Status
    error: str | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else runs this lane and goes on when done."""

    worker: UUID
    hooks_due: bool = False
    responses_due: bool = False


class Applied(StrEnum):
    """What the apply step found."""

    APPLIED = "applied"
    ENDED = "ended"
    LOST = "lost"
    UNREADABLE = "unreadable"
    NOTHING = "nothing"
    """The row is to continue an answer, and the conversation does not end with one."""
    DEFERRED = "deferred"
    """Nothing is written yet: the runner is to supply the messages in view of this transcript."""


@dataclass(frozen=True, slots=True)
class Application:
    """The transcript at the start of a turn; empty unless `outcome` is `applied` or `deferred`."""

    outcome: Applied
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """All messages if `is_whole`, else those after what the caller had read."""
    new: list[dict[str, Any]] = field(default_factory=list)
    is_whole: bool = True
    last: int = 0
    rewrites: int = 0
    body: Any = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended, before it is written."""

    status: Status
    error: str | None = None
    message: dict[str, Any] | None = None
    output: Any = None
    usage: dict[str, Any] | None = None
    first_chunk: timedelta | None = None
    """From claim to the first chunk."""
    responds: bool = False
    """The response hook is to hear of it."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the settle step did."""

    settled: bool
    """False: another claim holds the lane, nothing was written by this call."""
    row: Row | None
    """The row as it is now, None when it was deleted."""
    next: Claim | Rest | None
    """What the lane does next; None when it was released unasked."""
    more: bool
    """Rows are waiting and the lane was released."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A lane whose worker is silent."""

    address: Address
    fence: int
    applied: bool
    starts: int


def claim(
    database: Database, address: Address, *, worker: UUID, claim_id: UUID, rang: UUID | None = None
) -> Claim | Busy | Rest:
    """Take the lane if it is free and give it to its oldest pending row that may run.

    Args:
        rang: The row whose bell is answered.
    """
    parameters = {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_worker": worker,
        "p_claim": claim_id,
        "p_max_starts": database.settings.max_starts,
        "p_lease": database.settings.lease,
        "p_rang": rang,
    }
    answer = database.step("claim", parameters)
    if answer["outcome"] == "busy":
        return Busy(UUID(answer["worker"]), bool(answer["hooks_due"]), bool(answer["responses_due"]))
    return _claim_of(answer)


def apply(
    database: Database, claim: Claim, *, after: int = 0, rewrites: int = 0, supplied: str | None = None
) -> Application:
    """Append the row's messages to the transcript, once, and read it; in one transaction.

    Args:
        after: What the caller has read of the transcript already, `last` of an earlier application.
        rewrites: Of that application; when messages were taken out since, everything is read again.
        supplied: JSON text of the messages of a deferred row.
    """
    read = {"p_after": after, "p_rewrites": rewrites, "p_messages": supplied}
    return _application_of(database.step("apply", _named(claim) | read))


def _application_of(answer: dict[str, Any]) -> Application:
    outcome = Applied(answer["outcome"])
    if outcome not in {Applied.APPLIED, Applied.DEFERRED}:
        return Application(outcome)
    return Application(
        outcome,
        transcript=answer["transcript"] or [],
        new=answer["new"],
        is_whole=answer["whole"],
        last=answer["last"],
        rewrites=answer["rewrites"],
        body=answer["body"],
    )


def settle(
    database: Database,
    claim: Claim,
    ending: Ending,
    *,
    worker: UUID,
    next_claim: UUID | None,
    read: tuple[int, int] | None = None,
) -> Settlement:
    """Write the end of a turn if its row still runs, and pass the lane on.

    Args:
        next_claim: Name of the claim on the next row, None to release the lane.
        read: What was read of the transcript, `last` and `rewrites` of an application: for the next row to be
            applied in the same transaction. None leaves that to a step of its own.
    """
    after, rewrites = read or (None, None)
    parameters = _named(claim) | {
        "p_worker": worker,
        "p_status": ending.status.value,
        "p_error": ending.error,
        "p_message": _json(ending.message),
        "p_output": _json(ending.output),
        "p_usage": _json(ending.usage),
        "p_first_chunk": ending.first_chunk,
        "p_respond": ending.responds,
        "p_next_claim": next_claim,
        "p_max_starts": database.settings.max_starts,
        "p_lease": database.settings.lease,
        "p_after": after,
        "p_rewrites": rewrites,
    }
    answer = database.step("settle", parameters)
    following = answer.get("next")
    return Settlement(
        settled=answer["outcome"] == "settled",
        row=None if (answer["submission"] or {}).get("uid") is None else row_of(answer["submission"]),
        next=None if following is None else _claim_of(following),
        more=bool(answer.get("more")),
    )


def held(database: Database, worker: UUID) -> dict[UUID, Status | None]:
    """Return the rows of the lanes that a process holds, with their status; None for a deleted row."""
    query = (
        select(agents.c.active_uid, submissions.c.status)
        .outerjoin(submissions, submissions.c.uid == agents.c.active_uid)
        .where(agents.c.wanted, agents.c.active_worker == worker)
    )
    rows = database.run(lambda connection: connection.execute(query).all())
    return {row.active_uid: None if row.status is None else Status(row.status) for row in rows}


def wanted(database: Database, type_names: Sequence[str]) -> set[Address]:
    """Return the agents of these classes whose queues workers should consume."""
    query = select(agents.c.agent_type, agents.c.agent_name).where(
        agents.c.wanted, agents.c.agent_type.in_(type_names)
    )
    rows = database.run(lambda connection: connection.execute(query).all())
    return {Address(row.agent_type, row.agent_name) for row in rows}


def drop_idle(database: Database) -> int:
    """Unmark lanes that were idle for three times the announce threshold; returns how many."""
    idle = timedelta(seconds=3 * database.settings.announce_seconds)
    return int(database.step("drop_idle", {"p_idle": idle})["value"])


def due_bells(database: Database, *, limit: int) -> list[Address]:
    """Mark and return lanes whose last bell is too old: idle ones with work, and those with a hook due."""
    statement = database.sql("SELECT * FROM {schema}.due_bells(%(after)s, %(limit)s, %(lease)s)")
    after = timedelta(seconds=database.settings.nudge_after_seconds)
    parameters = {"after": after, "limit": limit, "lease": database.settings.lease}
    rows = database.run(lambda connection: connection.exec_driver_sql(statement, parameters).all())
    return [Address(row.agent_type, row.agent_name) for row in rows]


def next_due(database: Database) -> float | None:
    """Return the seconds until the next head that waits for its time may start; None when none waits."""
    left = func.extract("epoch", func.min(agents.c.due_at) - func.clock_timestamp())
    query = select(left).where(agents.c.due_at > func.clock_timestamp())
    seconds = database.run(lambda connection: connection.execute(query).scalar_one())
    return None if seconds is None else float(seconds)


def orphans(database: Database) -> list[Orphan]:
    """Return the lanes held by processes without a sign of life for the lease time."""
    query = (
        select(agents, submissions.c.messages_applied_at, submissions.c.attempt)
        .outerjoin(submissions, submissions.c.uid == agents.c.active_uid)  # it may have been deleted
        .outerjoin(workers, workers.c.worker_id == agents.c.active_worker)
        .where(
            agents.c.wanted,
            agents.c.active_uid.is_not(None),
            or_(
                workers.c.worker_id.is_(None),
                workers.c.heartbeat_at < func.clock_timestamp() - database.settings.lease,
            ),
        )
    )
    rows = database.run(lambda connection: connection.execute(query).all())
    return [
        Orphan(
            Address(row.agent_type, row.agent_name),
            row.fence,
            row.messages_applied_at is not None,
            row.attempt or 0,
        )
        for row in rows
    ]


def rescue(database: Database, orphan: Orphan, *, error: str | None) -> Row | None:
    """Take the lane from its dead runner: back to its place, or ended with this error text.

    Returns:
        The row as it is now; None when it was deleted, the runner came back or somebody else was faster.
    """
    parameters = {
        "p_type": orphan.address.type_name,
        "p_name": orphan.address.name,
        "p_fence": orphan.fence,
        "p_lease": database.settings.lease,
        "p_action": "requeue" if error is None else "fail",
        "p_error": error,
    }
    answer = database.step("rescue", parameters)
    row = answer.get("submission") or {}
    return None if row.get("uid") is None else row_of(row)


def _claim_of(answer: dict[str, Any]) -> Claim | Rest:
    ended = tuple(ended_of(ended) for ended in answer.get("ended") or ())
    due = bool(answer.get("hooks_due")), bool(answer.get("responses_due"))
    if answer["outcome"] != "claimed":
        return Rest(answer["outcome"], ended, *due, _rang_of(answer.get("rang")))
    applied = answer.get("application")
    application = None if applied is None else _application_of(applied)
    return Claim(row_of(answer["submission"]), answer["fence"], ended, *due, application, answer.get("armed"))


def _rang_of(row: dict[str, Any] | None) -> Rang | None:
    return None if row is None else Rang(row["submission_id"], Status(row["status"]), row["error"])


def _named(claim: Claim) -> dict[str, Any]:
    return {
        "p_type": claim.row.address.type_name,
        "p_name": claim.row.address.name,
        "p_uid": claim.row.uid,
        "p_fence": claim.fence,
    }


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
