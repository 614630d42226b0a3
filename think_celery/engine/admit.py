"""The one way in: validate, place in the lane, commit, nudge."""

import json
from hashlib import sha256
from typing import Any
from uuid import uuid4

from think_celery.core.address import Address
from think_celery.core.compaction import compact
from think_celery.core.message import check_identifier, parse_messages, parse_metadata
from think_celery.core.routing import nudge_id
from think_celery.core.submission import Kind, Receipt, Status
from think_celery.core.wire import json_text
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger import submissions
from think_celery.ledger.submissions import Acceptance, Identity, Request


def admit(
    runtime: Runtime,
    address: Address,
    messages: object,
    *,
    submission_id: str | None = None,
    idempotency_key: str | None = None,
    metadata: dict[str, Any] | None = None,
    kind: Kind = Kind.SUBMIT,
) -> Receipt:
    """Accept one turn durably and ring the bell.

    The order of the checks is the specification's (S 1.2): an empty list is refused first; then a known id
    or key returns its row whatever else was sent; only then are payload and metadata looked at.

    Returns:
        The submission at acceptance; `accepted` is False when the identity was known.

    Raises:
        InvalidInput: A value cannot be accepted; nothing was written.
        IdentityConflict: Id and key belong to different submissions; nothing was written.
        LedgerUnavailable: PostgreSQL did not answer in time; the call may be repeated with the same identity.
    """
    identity = _identity(submission_id, idempotency_key)
    if isinstance(messages, list | tuple) and not messages:
        raise InvalidInput("messages", "the list is empty; send at least one message")
    try:
        request = _request(runtime, address, identity, messages, metadata, kind)
    except InvalidInput:
        known = submissions.known(runtime.database, address, identity) if identity.given else None
        if known is None:
            raise
        acceptance = known
    else:
        acceptance = submissions.accept(runtime.database, request)
    _ring(runtime, acceptance)
    return Receipt(**dict(acceptance.row.submission), accepted=acceptance.accepted)


def _identity(submission_id: str | None, idempotency_key: str | None) -> Identity:
    uid = uuid4()
    return Identity(
        uid=uid,
        submission_id=str(uid) if submission_id is None else check_identifier("submission_id", submission_id),
        id_given=submission_id is not None,
        key=None if idempotency_key is None else check_identifier("idempotency_key", idempotency_key),
    )


def _request(
    runtime: Runtime, address: Address, identity: Identity, messages: object, metadata: object, kind: Kind
) -> Request:
    settings = runtime.settings
    parsed = parse_messages(messages, new_id=lambda: str(uuid4()), max_bytes=settings.max_messages_bytes)
    stored = [compact(message, max_bytes=settings.max_message_bytes) for message in parsed]
    checked = parse_metadata(metadata, max_bytes=settings.max_metadata_bytes)
    return Request(
        address=address,
        identity=identity,
        kind=kind,
        messages=json_text(stored),
        body_hash=_body_hash(parsed),
        metadata=None if checked is None else json_text(checked),
    )


def _body_hash(messages: list[dict[str, Any]]) -> bytes:
    """Hash what was said, without message ids: a retry often makes new ones."""
    said = [{name: value for name, value in message.items() if name != "id"} for message in messages]
    return sha256(json.dumps(said, sort_keys=True).encode()).digest()


def _ring(runtime: Runtime, acceptance: Acceptance) -> None:
    row = acceptance.row
    if row.submission.status == Status.PENDING:
        task_id = nudge_id(row.uid, row.nudges)
        runtime.dispatcher.nudge(row.address, row.uid, task_id=task_id, announce=acceptance.announce)
