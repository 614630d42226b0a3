"""The one way in: validate, place in the lane, commit, nudge."""

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Literal
from uuid import uuid4

from think_celery.core.address import Address
from think_celery.core.compaction import compact
from think_celery.core.duration import seconds
from think_celery.core.message import check_identifier, parse_messages, parse_metadata
from think_celery.core.routing import nudge_id
from think_celery.core.submission import Kind, Receipt, Status
from think_celery.core.wire import json_text, strict_json
from think_celery.engine import news, placing, status_hooks, webhook_address
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput, PayloadMismatch
from think_celery.ledger import caller, submissions
from think_celery.ledger.submissions import Acceptance, Identity, Options, Request

log = logging.getLogger(__name__)
IfBusy = Literal["enqueue", "reject", "interrupt", "rollback"]
_IF_BUSY = ("enqueue", "reject", "interrupt", "rollback")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller hands in beside the messages, not checked yet; see `AgentHandle.submit_messages`."""

    submission_id: str | None = None
    idempotency_key: str | None = None
    metadata: dict[str, Any] | None = None
    body: Any = None
    if_busy: IfBusy = "enqueue"
    run_timeout: float | timedelta | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    webhook_url: str | None = None
    connection: Any = None
    rerun_of: str | None = None
    kind: Kind = field(default=Kind.SUBMIT)


def admit(runtime: Runtime, address: Address, messages: object, wish: Wish) -> Receipt:
    """Accept one turn durably and ring the bell.

    The order of the checks is the specification's (S 1.2): an empty list is refused first; then a known id
    or key returns its row whatever else was sent; only then are payload and metadata looked at.

    Returns:
        The submission at acceptance; `accepted` is False when the identity was known.

    Raises:
        InvalidInput: A value cannot be accepted; nothing was written.
        IdentityConflict: Id and key belong to different submissions; nothing was written.
        AgentBusy: The agent has work, and `if_busy` is `reject`; nothing was written.
        LaneFull: Too many submissions of the agent wait; nothing was written.
        PayloadMismatch: The identity is known with other messages, in strict mode.
        LedgerUnavailable: PostgreSQL did not answer in time; the call may be repeated with the same identity.
    """
    identity = _identity(wish)
    if isinstance(messages, list | tuple) and not messages:
        raise InvalidInput("messages", "the list is empty; send at least one message")
    status_hooks.declare(runtime)
    try:
        request = request_of(runtime, address, identity, messages, wish)
    except InvalidInput:
        known = _known(runtime, address, identity, wish)
        if known is None:
            raise
        return _receipt(runtime, known, body_hash=None)
    acceptance = _accept(runtime, request, wish)
    return _receipt(runtime, acceptance, body_hash=request.body_hash)


def _accept(runtime: Runtime, request: Request, wish: Wish) -> Acceptance:
    if wish.connection is not None:
        return placing.reserve(runtime, wish.connection, request)
    acceptance = submissions.accept(runtime.database, request)
    if acceptance.accepted:
        status_hooks.tell(runtime, request.address, acceptance.row.submission)
        if request.options.hold is not None:
            submissions.release(runtime.database, acceptance.row.uid)
    ring(runtime, acceptance)
    if acceptance.ended:
        news.ended(runtime, acceptance.ended)
        if any(end.row.hook_due for end in acceptance.ended):
            status_hooks.deliver(runtime, request.address)
    return acceptance


def _known(runtime: Runtime, address: Address, identity: Identity, wish: Wish) -> Acceptance | None:
    if not identity.given:
        return None
    through = None if wish.connection is None else caller.connection_of(wish.connection)
    return submissions.known(runtime.database, address, identity, connection=through)


def _receipt(runtime: Runtime, acceptance: Acceptance, *, body_hash: bytes | None) -> Receipt:
    matches = acceptance.body_hash is None or body_hash is None or acceptance.body_hash == body_hash
    submission = acceptance.row.submission
    if body_hash is None:
        ring(runtime, acceptance)
        matches = False  # it could not even be read
    if runtime.settings.strict_idempotency and not matches:
        raise PayloadMismatch(submission.submission_id)
    return Receipt(**vars(submission), accepted=acceptance.accepted, payload_matches=matches)


def ring(runtime: Runtime, acceptance: Acceptance) -> None:
    """Ring the bell of a row that waits."""
    row = acceptance.row
    if row.submission.status is Status.PENDING:
        task_id = nudge_id(row.uid, row.nudges)
        runtime.dispatcher.nudge(row.address, row.uid, task_id=task_id, announce=acceptance.announce)


def _identity(wish: Wish) -> Identity:
    uid = uuid4()
    given, key = wish.submission_id, wish.idempotency_key
    return Identity(
        uid=uid,
        submission_id=str(uid) if given is None else check_identifier("submission_id", given),
        id_given=given is not None,
        key=None if key is None else check_identifier("idempotency_key", key),
    )


def request_of(
    runtime: Runtime, address: Address, identity: Identity, messages: object, wish: Wish
) -> Request:
    """Return what a caller asks for, checked and ready to be written.

    Raises:
        InvalidInput: A value cannot be accepted.
    """
    settings = runtime.settings
    parsed = parse_messages(messages, new_id=lambda: str(uuid4()), max_bytes=settings.max_messages_bytes)
    text = json_text(parsed)
    if len(text.encode()) > settings.max_message_bytes:
        text = json_text([compact(message, max_bytes=settings.max_message_bytes) for message in parsed])
    checked = parse_metadata(wish.metadata, max_bytes=settings.max_metadata_bytes)
    return Request(
        address=address,
        identity=identity,
        kind=wish.kind,
        messages=text,
        body_hash=_body_hash(parsed),
        metadata=None if checked is None else json_text(checked),
        body=body_text(runtime, wish.body),
        options=_options(runtime, address, wish),
    )


def body_text(runtime: Runtime, body: object) -> str | None:
    """Return a body, any JSON value, as JSON text; raises InvalidInput when it is none."""
    if body is None:
        return None
    return json_text(strict_json("body", body, max_bytes=runtime.settings.max_metadata_bytes))


def _options(runtime: Runtime, address: Address, wish: Wish) -> Options:
    if wish.if_busy not in _IF_BUSY:
        raise InvalidInput("if_busy", f"{wish.if_busy!r} is unknown; use {', '.join(_IF_BUSY)}")
    if wish.connection is not None and wish.if_busy != "enqueue":
        raise InvalidInput("if_busy", "inside your own transaction only enqueue is possible")
    limit = seconds(wish.run_timeout, field="run_timeout")
    if limit == 0:
        raise InvalidInput("run_timeout", "0 leaves no time to run; leave it out for no limit")
    before, after = moment("not_before", wish.not_before), moment("not_after", wish.not_after)
    if before is not None and after is not None and after < before:
        raise InvalidInput("not_after", "is earlier than not_before; the submission could never start")
    url = runtime.settings.webhook_url if wish.webhook_url is None else wish.webhook_url
    return Options(
        if_busy=wish.if_busy,
        not_before=before,
        not_after=after,
        run_timeout=limit,
        webhook_url=None if url is None else webhook_address.check(url),
        rerun_of=wish.rerun_of,
        tell=not status_hooks.is_loaded(address),
        hold=status_hooks.hold(runtime, address),
    )


def moment(field_name: str, value: object) -> datetime | None:
    """Return an instant that a caller gave, in UTC.

    Raises:
        InvalidInput: No datetime with a time zone, or none that UTC can express.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidInput(field_name, f"must be a datetime with a time zone, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(field_name, "has no time zone; use datetime.now(UTC) or attach one")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(field_name, "is outside of the years 1 to 9999 in UTC") from None


def _body_hash(messages: list[dict[str, Any]]) -> bytes:
    """Hash what was said, without message ids: a retry often makes new ones."""
    said = [{name: value for name, value in message.items() if name != "id"} for message in messages]
    return sha256(json.dumps(said, sort_keys=True).encode()).digest()
