"""Turns that their caller waits for: `chat`, `save_messages`, `continue_last_turn`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from think_celery.abort import AbortSignal
from think_celery.core.address import Address
from think_celery.core.duration import seconds
from think_celery.core.failure import describe
from think_celery.core.message import parse_metadata
from think_celery.core.submission import Kind, Submission
from think_celery.core.turn import TurnResult
from think_celery.core.wire import clean_text, json_text
from think_celery.engine import admit, context, near
from think_celery.engine.calls import Call, Supply
from think_celery.engine.context import Here
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.engine.supply import stored
from think_celery.errors import CallerError, InvalidInput, StateConflict, WrongContext
from think_celery.ledger import messages, submissions
from think_celery.ledger.rows import Row
from think_celery.ledger.submissions import Identity, Origin, Request

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ask:
    """A turn that its caller waits for, checked where it was called."""

    address: Address
    kind: Kind
    messages: str = "[]"
    """JSON text of the list."""
    supply: Supply | None = None
    """Makes them when the turn starts."""
    metadata: str | None = None
    body: str | None = None
    signal: AbortSignal = field(default_factory=AbortSignal)
    """Fires when the caller wants the turn stopped, or the turn that asks is stopped."""
    timeout: float | None = None
    here: Here | None = None
    """The turn that asks."""
    listens: bool = False


def _prepare(runtime: Runtime, ask: Ask, signal: AbortSignal | None) -> Ask:
    """Complete a call with its caller's signal and the turn that it is made in.

    Raises:
        NestedTurnError: The asked agent waits for the calling turn.
        WrongContext: Messages are to be made when the turn starts, and this process runs no turns.
        InvalidInput: `signal` is no AbortSignal.
    """
    if signal is not None and not isinstance(signal, AbortSignal):
        raise InvalidInput("signal", f"must be an AbortSignal, not {type(signal).__name__}")
    if ask.supply is not None and not near.is_possible(runtime, ask.address):
        raise WrongContext(
            "a function of the conversation can only be called where the turn runs, inside an agent; "
            "hand over a list of messages"
        )
    here = context.refuse_nesting(ask.address)
    signals = (signal, None if here is None else here.signal)
    return replace(ask, here=here, signal=AbortSignal.any(*(each for each in signals if each is not None)))


def chatting(
    runtime: Runtime,
    address: Address,
    given: object,
    *,
    metadata: object,
    signal: AbortSignal | None,
    timeout: float | timedelta | None,
    listens: bool,
) -> Ask:
    """Return the call of `chat`, checked; blank text is a turn like any other (T 1.2)."""
    messages, supplied = _said(runtime, given, allow_empty=False)
    ask = Ask(
        address=address,
        kind=Kind.CHAT,
        messages=messages,
        supply=supplied,
        metadata=_metadata(runtime, metadata),
        timeout=seconds(timeout),
        listens=listens,
    )
    return _prepare(runtime, ask, signal)


def saving(runtime: Runtime, address: Address, given: object, *, signal: AbortSignal | None) -> Ask:
    """Return the call of `save_messages`, checked; without messages it runs on what there is (T 1.6)."""
    messages, supplied = _said(runtime, given, allow_empty=True)
    ask = Ask(address=address, kind=Kind.SAVE, messages=messages, supply=supplied)
    return _prepare(runtime, ask, signal)


def continuing(runtime: Runtime, address: Address, body: object, *, signal: AbortSignal | None) -> Ask:
    """Return the call of `continue_last_turn`, checked (T 1.7)."""
    ask = Ask(address=address, kind=Kind.CONTINUE, body=admit.body_text(runtime, body))
    return _prepare(runtime, ask, signal)


def _said(runtime: Runtime, given: object, *, allow_empty: bool) -> tuple[str, Supply | None]:
    """Return messages as JSON text, or what makes them when the turn starts."""
    if callable(given):
        return "[]", Supply(given)
    return stored(runtime, given, allow_empty=allow_empty), None


def _metadata(runtime: Runtime, metadata: object) -> str | None:
    checked = parse_metadata(metadata, max_bytes=runtime.settings.max_metadata_bytes)
    return None if checked is None else json_text(checked)


async def place(runtime: Runtime, ask: Ask, uid: UUID, *, runs_here: bool) -> Row:
    """Write the row; it takes its place behind everything that was accepted before.

    A caller that is stopped meanwhile takes it back, as `stoppable` does later.
    """
    placing = asyncio.create_task(_write(runtime, ask, uid, runs_here=runs_here))
    try:
        return await asyncio.shield(placing)
    except BaseException:
        if _is_own(runtime, ask):
            runtime.loop.send_off(_take_back(runtime, ask, uid, placing))
        raise


def _is_own(runtime: Runtime, ask: Ask) -> bool:
    """True for a turn that is part of its caller's, or that only this process may run."""
    return ask.here is not None or near.is_possible(runtime, ask.address)


async def _write(runtime: Runtime, ask: Ask, uid: UUID, *, runs_here: bool) -> Row:
    here = None if ask.here is None or ask.here.is_over else ask.here  # its record may be deleted
    request = Request(
        address=ask.address,
        identity=Identity(uid, str(uid), id_given=False, key=None),
        kind=ask.kind,
        messages=ask.messages,
        body_hash=b"",
        metadata=ask.metadata,
        body=ask.body,
        origin=Origin(
            parent_id=None if here is None else here.uid,
            root_id=None if here is None else here.root_id,
            runner=runtime.worker_id if runs_here else None,
            deferred=ask.supply is not None,
        ),
    )
    async with runtime.calls.in_order(ask.address, patience=runtime.settings.database_timeout):
        acceptance = await in_ledger_pool(runtime, partial(submissions.accept, runtime.database, request))
    if not runs_here:
        await in_ledger_pool(runtime, partial(admit.ring, runtime, acceptance))
    return acceptance.row


async def _take_back(runtime: Runtime, ask: Ask, uid: UUID, placing: "asyncio.Task[Row]") -> None:
    """Cancel a row whose caller is gone; it may be there, or come yet."""
    await asyncio.wait([placing])
    if not isinstance(placing.exception(), CallerError | StateConflict):
        await near.stop(runtime, ask.address, uid, reason="the call was cancelled")


async def call(runtime: Runtime, ask: Ask, uid: UUID) -> Call:
    """Place a turn that this process runs itself, and start working towards its end."""
    asked = Call(ask.address, uid, caller=ask.here, supply=ask.supply, listens=ask.listens)
    runtime.calls.add(asked)
    try:
        await place(runtime, ask, uid, runs_here=True)
    except BaseException:
        runtime.calls.drop(asked)
        raise
    near.run(runtime, asked)
    return asked


@asynccontextmanager
async def stoppable(runtime: Runtime, ask: Ask, uid: UUID) -> AsyncIterator[None]:
    """Cancel the turn when the signal fires within the block.

    So it is when the caller gives up on a turn of its own.
    """

    def stop(reason: object) -> None:
        runtime.loop.send_off(near.stop(runtime, ask.address, uid, reason=_words(reason)))

    remove = ask.signal.add_listener(lambda: stop(ask.signal.reason))
    try:
        yield
    except BaseException as error:
        if _is_own(runtime, ask):
            stop(error if isinstance(error, Exception) else "the call was cancelled")
        raise
    finally:
        remove()


def stopped(ask: Ask, uid: UUID) -> TurnResult | None:
    """Return the result of a turn whose signal had fired before; nothing was written."""
    if not ask.signal.aborted:
        return None
    return TurnResult(request_id=str(uid), status="aborted", error=_words(ask.signal.reason))


def _words(reason: object) -> str | None:
    if reason is None:
        return None
    try:
        return describe(reason) if isinstance(reason, BaseException) else clean_text(str(reason))
    except Exception:  # noqa: BLE001 a reason that has no words does not keep the turn from ending
        return type(reason).__name__


async def result(
    runtime: Runtime,
    ask: Ask,
    uid: UUID,
    now: Submission | None,
    *,
    message: dict[str, Any] | None = None,
) -> TurnResult:
    """Return how a turn ended.

    Args:
        now: Its row; None when that was deleted.
        message: What it said, when that is known here.
    """
    if now is None:
        return TurnResult(request_id=str(uid), status="aborted", error="the turn was deleted")
    if message is None and now.message_id is not None:
        find = partial(messages.get, runtime.database, ask.address, message_id=now.message_id)
        message = await in_ledger_pool(runtime, find)
    return TurnResult(
        request_id=now.request_id,
        status=now.status.value,
        error=now.error,
        message_id=now.message_id,
        output=now.output,
        message=None if message is None or now.message_id is None else message | {"id": now.message_id},
        continuation=now.kind is Kind.CONTINUE,
    )
