"""Accept, inspect and list submissions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Select, select

from think_celery.core.address import Address
from think_celery.core.submission import Kind, Status, Submission
from think_celery.errors import IdentityConflict
from think_celery.ledger.database import Database
from think_celery.ledger.rows import Row, row_of, submission_of
from think_celery.ledger.schema import submissions

_HIDDEN = {"messages", "body_hash"}
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
class Request:
    """A validated request for one turn, ready to be written."""

    address: Address
    identity: Identity
    kind: Kind
    messages: str
    """JSON text of the message list."""
    body_hash: bytes
    metadata: str | None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the accepting statement did."""

    accepted: bool
    announce: bool
    """True when workers may not be consuming the agent's queue."""
    row: Row


def accept(database: Database, request: Request) -> Acceptance:
    """Write the row and give it its place, or find the row that has this identity (S 1.2, S 8).

    Raises:
        IdentityConflict: The id and the key belong to different submissions; nothing was written.
    """
    body = {
        "p_kind": request.kind.value,
        "p_messages": request.messages,
        "p_hash": request.body_hash,
        "p_metadata": request.metadata,
        "p_traceparent": request.traceparent,
    }
    acceptance = _accept(database, request.address, request.identity, body)
    assert acceptance is not None, "with messages the step always gives a row"
    return acceptance


def known(database: Database, address: Address, identity: Identity) -> Acceptance | None:
    """Return the row that has this identity, None when there is none; at most its bell's
    number changes.

    Raises:
        IdentityConflict: The id and the key belong to different submissions.
    """
    body = dict.fromkeys(("p_kind", "p_messages", "p_hash", "p_metadata", "p_traceparent"))
    return _accept(database, address, identity, body)


def _accept(
    database: Database, address: Address, identity: Identity, body: Mapping[str, Any]
) -> Acceptance | None:
    parameters = {
        "p_type": address.type_name,
        "p_name": address.name,
        "p_submission_id": identity.submission_id,
        "p_id_given": identity.id_given,
        "p_uid": identity.uid,
        "p_key": identity.key,
        **body,
        "p_announce": timedelta(seconds=database.settings.announce_seconds),
    }
    answer = database.step("accept", parameters)
    if answer["outcome"] == "conflict":
        raise IdentityConflict(identity.submission_id, identity.key, _conflict(identity, answer))
    if answer["outcome"] == "unknown":
        return None
    return Acceptance(answer["outcome"] == "accepted", answer["announce"], row_of(answer["submission"]))


def find(database: Database, address: Address, *, submission_id: str) -> Row | None:
    """Return the row with its uid, None for an unknown id."""
    query = _of(address).where(submissions.c.submission_id == submission_id)
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
) -> list[Submission]:
    """Return an agent's submissions, youngest first (S 1.4).

    Args:
        statuses: Only these; an empty sequence gives nothing, None gives all.
        limit: At most so many, applied after the filter.
    """
    query = _of(address).where(submissions.c.kind.in_(kinds))
    if statuses is not None:
        query = query.where(submissions.c.status.in_(statuses))
    query = query.order_by(submissions.c.position.desc().nulls_first()).limit(limit)
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
