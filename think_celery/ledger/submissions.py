"""Accept, inspect and list submissions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, func, select, union_all, update

from think_celery.core.address import Address
from think_celery.core.submission import Kind, Status, Submission
from think_celery.errors import AbortError, AgentBusy, IdentityConflict, LaneFull
from think_celery.ledger import caller
from think_celery.ledger.database import Database
from think_celery.ledger.rows import Ended, Row, ended_of, row_of, submission_of
from think_celery.ledger.schema import submissions

_HIDDEN = {"messages", "body_hash", "body"}
_YOUNGEST = (submissions.c.position.desc().nulls_first(), submissions.c.created_at.desc())
"""By place; those that have none yet come first, by their time."""
_COLUMNS = [column for column in submissions.c if column.name not in _HIDDEN]


@dataclass(frozen=True, slots=True)
class Identity:
    """How a caller names a submission; the uid names this call, so that its repetition is recognised."""

    uid: UUID
    submission_id: str
    id_given: bool
    key: str | None

    @property
    def given(self) -> bool:
        """True when the caller named the submission in any way."""
        return self.id_given or self.key is not None


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask of one submission beyond its turn."""

    if_busy: str = "enqueue"
    not_before: datetime | None = None
    not_after: datetime | None = None
    run_timeout: float | None = None
    """Seconds."""
    webhook_url: str | None = None
    rerun_of: str | None = None
    tell: bool = False
    """The caller cannot call the status hook itself; a worker shall."""
    hold: timedelta | None = None
    """The caller calls it: for so long at most the turn does not start."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a turn comes from, when another turn asked for it or its caller runs it itself."""

    parent_id: UUID | None = None
    """The turn that asked."""
    root_id: UUID | None = None
    """The first turn of that chain."""
    runner: UUID | None = None
    """The process that runs it."""
    deferred: bool = False
    """That process supplies the messages when it starts."""


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request for one turn, ready to be written."""

    address: Address
    identity: Identity
    kind: Kind
    messages: str
    """JSON text of the message list."""
    body_hash: bytes
    metadata: str | None
    body: str | None = None
    """JSON text of what came with the request."""
    options: Options = Options()
    origin: Origin = Origin()
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the accepting statement did."""

    accepted: bool
    announce: bool
    """True when workers may not be consuming the agent's queue."""
    row: Row
    body_hash: bytes | None = None
    """Hash of the first call's messages, when the identity was known."""
    ended: tuple[Ended, ...] = ()
    """Rows that had to make way."""


def accept(database: Database, request: Request) -> Acceptance:
    """Write the row and give it its place, or find the row that has this identity (S 1.2, S 8).

    Raises:
        IdentityConflict: The id and the key belong to different submissions; nothing was written.
        AgentBusy: The lane has work and `if_busy` is `reject`; nothing was written.
        LaneFull: Too many rows wait; nothing was written.
        AbortError: The turn that asks was deleted, and all that belongs to its agent; nothing was written.
    """
    answer = _accept(
        database, request.address, request.identity, _body(request), request.options, request.origin
    )
    acceptance = acceptance_of(request.identity, request.address, answer, request)
    assert acceptance is not None, "with messages the step always gives a row"
    return acceptance


def release(database: Database, uid: UUID) -> None:
    """Let a row start whose status hook has heard of the acceptance."""
    statement = update(submissions).where(submissions.c.uid == uid).values(held_until=None)
    database.run(lambda connection: connection.execute(statement))


def reserve(database: Database, connection: Connection, request: Request) -> Acceptance:
    """Write the row in a caller's transaction, without a place in line; `place` follows the commit.

    Raises:
        IdentityConflict: The id and the key belong to different submissions; nothing was written.
    """
    parameters = {**_identity(request.address, request.identity), **_body(request)}
    answer = caller.step(database, connection, "reserve", parameters)
    acceptance = acceptance_of(request.identity, request.address, answer)
    assert acceptance is not None, "the step always gives a row"
    return acceptance


def place(
    database: Database, address: Address, *, uid: UUID, tell: bool = False, hold: timedelta | None = None
) -> Row | None:
    """Give a reserved row its place; None while it is not visible, or when it needs none any more.

    Args:
        tell: A worker shall call the status hook; the caller does not.
        hold: The caller calls it: for so long at most the turn does not start.
    """
    agent = {"p_type": address.type_name, "p_name": address.name, "p_parent": address.parent}
    answer = database.step("place", {**agent, "p_uid": uid, "p_tell": tell, "p_hold": hold})
    return row_of(answer) if answer.get("uid") is not None else None


def unplaced(database: Database, *, older_than: timedelta, limit: int) -> list[tuple[Address, UUID]]:
    """Return reserved rows whose transaction has committed and whose place nobody has given."""
    query = (
        select(submissions.c.agent_type, submissions.c.agent_name, submissions.c.uid)
        .where(
            submissions.c.position.is_(None), submissions.c.created_at < func.clock_timestamp() - older_than
        )
        .order_by(submissions.c.created_at)
        .limit(limit)
    )
    rows = database.run(lambda connection: connection.execute(query).all())
    return [(Address(row.agent_type, row.agent_name), row.uid) for row in rows]


def known(
    database: Database, address: Address, identity: Identity, *, connection: Connection | None = None
) -> Acceptance | None:
    """Return the row that has this identity, None when there is none; at most its bell's number changes.

    Args:
        connection: The caller's own; its open transaction may hold the identity.

    Raises:
        IdentityConflict: The id and the key belong to different submissions.
    """
    nothing = dict.fromkeys(_BODY)
    if connection is None:
        answer = _accept(database, address, identity, nothing, Options(), Origin())
        return acceptance_of(identity, address, answer)
    parameters = {**_identity(address, identity), **nothing}
    return acceptance_of(identity, address, caller.step(database, connection, "reserve", parameters))


def payload(database: Database, address: Address, *, submission_id: str) -> tuple[Row, Any, Any] | None:
    """Return a row with the messages and the body that it was accepted with, None for an unknown id."""
    query = select(submissions).where(
        submissions.c.agent_type == address.type_name,
        submissions.c.agent_name == address.name,
        submissions.c.submission_id == submission_id,
    )
    row = database.run(lambda connection: connection.execute(query).mappings().one_or_none())
    return None if row is None else (row_of(row), row["messages"], row["body"])


_BODY = (
    *("p_kind", "p_messages", "p_hash", "p_metadata", "p_traceparent"),
    *("p_not_before", "p_not_after", "p_run_timeout", "p_webhook_url", "p_rerun_of", "p_tell", "p_body"),
)


def _accept(
    database: Database,
    address: Address,
    identity: Identity,
    body: Mapping[str, Any],
    options: Options,
    origin: Origin,
) -> dict[str, Any]:
    parameters = {
        **_identity(address, identity),
        **body,
        "p_announce": timedelta(seconds=database.settings.announce_seconds),
        "p_if_busy": options.if_busy,
        "p_hold": options.hold,
        "p_max_pending": database.settings.max_pending,
        "p_parent": address.parent,
        "p_parent_id": origin.parent_id,
        "p_root_id": origin.root_id,
        "p_runner": origin.runner,
        "p_deferred": origin.deferred,
    }
    answer = database.step("accept", parameters)
    if answer["outcome"] == "full":
        raise LaneFull(str(address), database.settings.max_pending)
    if answer["outcome"] == "deleted":
        raise AbortError("the turn that asks was deleted")
    return answer


def acceptance_of(
    identity: Identity, address: Address, answer: Mapping[str, Any], request: Request | None = None
) -> Acceptance | None:
    """Return what an accepting step did; None when it only looked, for an identity that is unknown.

    Args:
        request: What was to be written, of which the step tells only what the request does not say.
    """
    match answer["outcome"]:
        case "conflict":
            raise IdentityConflict(identity.submission_id, identity.key, _conflict(identity, answer))
        case "busy":
            raise AgentBusy(str(address))
        case "unknown":
            return None
    known_hash = answer.get("body_hash")
    written = request if "submission" not in answer else None
    return Acceptance(
        accepted=answer["outcome"] == "accepted",
        announce=answer["announce"],
        row=row_of(answer["submission"]) if written is None else _new_row(written, answer),
        body_hash=None if known_hash is None else bytes.fromhex(known_hash),
        ended=tuple(ended_of(ended) for ended in answer.get("ended") or ()),
    )


def _new_row(request: Request, answer: Mapping[str, Any]) -> Row:
    """Return a row that was just written, of which the answer has only what the request does not say."""
    identity, options = request.identity, request.options
    submission = Submission(
        submission_id=identity.submission_id,
        agent=str(request.address),
        kind=request.kind,
        status=Status.PENDING,
        request_id=identity.submission_id,
        idempotency_key=identity.key,
        position=answer["position"],
        metadata=None if request.metadata is None else json.loads(request.metadata),
        not_before=options.not_before,
        not_after=options.not_after,
        run_timeout=options.run_timeout,
        rerun_of=options.rerun_of,
        created_at=answer["created_at"],
    )
    return Row(
        submission=submission,
        address=request.address,
        uid=identity.uid,
        root_id=request.origin.root_id or identity.uid,
        nudges=1,
        generation=answer["generation"],
        hook_due=answer["hook_due"],
        response_due=False,
        has_webhook=options.webhook_url is not None,
        traceparent=request.traceparent,
        messages_applied_at=None,
    )


def _identity(address: Address, identity: Identity) -> dict[str, Any]:
    return {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_submission_id": identity.submission_id,
        "p_id_given": identity.id_given,
        "p_uid": identity.uid,
        "p_key": identity.key,
    }


def _body(request: Request) -> dict[str, Any]:
    options = request.options
    values = (
        *(request.kind.value, request.messages, request.body_hash, request.metadata, request.traceparent),
        *(options.not_before, options.not_after, options.run_timeout, options.webhook_url, options.rerun_of),
        *(options.tell, request.body),
    )
    return dict(zip(_BODY, values, strict=True))


def find(database: Database, address: Address, *, submission_id: str) -> Row | None:
    """Return the row with its uid, None for an unknown id."""
    query = _of(address).where(submissions.c.submission_id == submission_id)
    row = database.run(lambda connection: connection.execute(query).mappings().one_or_none())
    return None if row is None else row_of(row)


def youngest_active(database: Database, address: Address) -> Row | None:
    """Return the last row in an agent's lane that waits or runs, None when there is none."""
    query = (
        _of(address)
        .where(submissions.c.status.in_([Status.PENDING, Status.RUNNING]))
        .order_by(*_YOUNGEST)
        .limit(1)
    )
    row = database.run(lambda connection: connection.execute(query).mappings().one_or_none())
    return None if row is None else row_of(row)


def find_by_uid(database: Database, uid: UUID) -> Row | None:
    """Return the row of one incarnation, None when it was deleted."""
    query = select(*_COLUMNS).where(submissions.c.uid == uid)
    row = database.run(lambda connection: connection.execute(query).mappings().one_or_none())
    return None if row is None else row_of(row)


def listing(
    database: Database,
    address: Address,
    *,
    statuses: Sequence[Status] | None,
    kinds: Sequence[Kind],
    limit: int,
    metadata: dict[str, Any] | None = None,
) -> list[Submission]:
    """Return an agent's submissions, youngest first (S 1.4).

    Args:
        statuses: Only these; an empty sequence gives nothing, None gives all.
        limit: At most so many, applied after the filter.
        metadata: Only rows whose metadata contains this.
    """
    query = _of(address).where(submissions.c.kind.in_(kinds)).order_by(*_YOUNGEST).limit(limit)
    if metadata is not None:
        query = query.where(submissions.c.metadata.contains(metadata))
    if statuses is not None:
        # One status at a time can be read off the index, however rare it is among a million rows.
        parts = [query.where(submissions.c.status == status).subquery() for status in set(statuses)]
        if not parts:
            return []
        merged = union_all(*(select(part) for part in parts)).subquery()
        query = (
            select(merged)
            .order_by(merged.c.position.desc().nulls_first(), merged.c.created_at.desc())
            .limit(limit)
        )
    rows = database.run(lambda connection: connection.execute(query).mappings().all())
    return [submission_of(row) for row in rows]


def _of(address: Address) -> Select[Any]:
    return select(*_COLUMNS).where(
        submissions.c.agent_type == address.type_name, submissions.c.agent_name == address.name
    )


def _conflict(identity: Identity, answer: Mapping[str, Any]) -> str:
    wanted = f"submission_id {identity.submission_id!r} and idempotency_key {identity.key!r}"
    if answer["id_of_key"] is not None:
        other = f"that key belongs to submission {answer['id_of_key']!r}"
    else:
        other = f"that submission was accepted with key {json.dumps(answer['key_of_id'])}"
    return (
        f"{wanted} do not name one submission: {other}; send the pair that was accepted, or only one of them"
    )
