"""Tell the other processes what the ledger now says; losing it costs them a second, never the truth."""

from collections.abc import Sequence
from typing import Any

from think_celery.core.routing import nudge_id
from think_celery.core.submission import Status
from think_celery.engine import webhooks
from think_celery.engine.runtime import Runtime
from think_celery.ledger.rows import Ended, Row
from think_celery.stream import abort
from think_celery.stream.writer import TurnWriter


def moved(runtime: Runtime, row: Row) -> None:
    """Tell the agent's channel of a row's present status."""
    runtime.loop.send_off(runtime.streams.publish_status(row.address, _payload(row)))
    _poke(runtime, row)


def ended_here(runtime: Runtime, row: Row, writer: TurnWriter) -> None:
    """End the turn's stream and tell the agent's channel, in one round trip."""
    now = row.submission
    told = of_status(runtime, row)
    runtime.loop.send_off(writer.end(now.status, now.error, now.message_id, also=told))
    _poke(runtime, row)


def of_status(runtime: Runtime, row: Row) -> tuple[str, bytes]:
    """Return channel and payload that tell of a row's present status."""
    return runtime.streams.status_news(row.address, _payload(row))


def _payload(row: Row) -> dict[str, Any]:
    return {"submissionId": row.submission.submission_id, "status": row.submission.status.value}


def _poke(runtime: Runtime, row: Row) -> None:
    if row.has_webhook and row.submission.is_terminal:
        webhooks.poke(runtime)


def deleted(runtime: Runtime, rows: Sequence[Row]) -> None:
    """Give waiters the last state of rows that are gone."""
    for row in rows:
        now = row.submission
        payload = {"submissionId": now.submission_id, "uid": str(row.uid), "deleted": now.to_json()}
        runtime.loop.send_off(runtime.streams.publish_status(row.address, payload))


def ended_elsewhere(runtime: Runtime, row: Row) -> None:
    """Tell it, and end the turn's stream, when its own writer is gone."""
    moved(runtime, row)
    now = row.submission
    if now.is_terminal:
        finish = runtime.streams.finish(
            row.uid, max(1, now.attempt), status=now.status.value, error=now.error, message_id=now.message_id
        )
        runtime.loop.send_off(finish)


def stop(runtime: Runtime, row: Row) -> None:
    """Ask whoever runs this attempt to stop."""
    runtime.loop.send_off(abort.send(runtime.streams, row.uid, row.submission.attempt))


def ended(runtime: Runtime, rows: Sequence[Ended]) -> None:
    """Make the end of rows known that callers ended: stop their runners, void their bells, wake who waits."""
    bells: list[str] = []
    for end in rows:
        row = end.row
        if end.was is Status.RUNNING:
            stop(runtime, row)
            moved(runtime, row)  # its runner ends the stream, with what was said so far
        else:
            ended_elsewhere(runtime, row)
        bells += [nudge_id(row.uid, number) for number in range(1, row.nudges + 1)]
    if bells:
        runtime.dispatcher.revoke(bells)
    told = next((end.row for end in rows if end.row.has_webhook), None)
    if told is not None:
        webhooks.ring(runtime, told.address)
