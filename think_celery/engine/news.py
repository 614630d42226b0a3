"""Tell the other processes what the ledger now says; losing it costs them a second, never the truth."""

from think_celery.engine.runtime import Runtime
from think_celery.ledger.rows import Row


def moved(runtime: Runtime, row: Row) -> None:
    """Tell the agent's channel of a row's present status."""
    now = row.submission
    payload = {"submissionId": now.submission_id, "status": now.status.value}
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
