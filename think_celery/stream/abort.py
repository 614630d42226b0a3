"""Abort signals: a flag that lasts, keyed by attempt, and a message on one channel for who listens now.

Both only make things quick. The ledger has decided before they are sent, and every worker process reads it
at each heartbeat.
"""

import asyncio
import json
import logging
from uuid import UUID

from think_celery.core.routing import abort_channel, abort_key
from think_celery.stream.connection import REDIS_ERRORS
from think_celery.stream.hub import Streams

log = logging.getLogger(__name__)

FLAG_SECONDS = 3600
"""Long enough for a worker that lost its connection to look; a later start has another attempt."""


async def send(streams: Streams, uid: UUID, attempt: int) -> None:
    """Ask whoever runs this attempt to stop; best effort, never raises."""
    prefix = streams.settings.redis_prefix
    payload = json.dumps({"uid": str(uid), "attempt": attempt})
    try:
        pipeline = streams.client.pipeline(transaction=False)
        pipeline.set(abort_key(prefix, uid, attempt), 1, ex=FLAG_SECONDS)
        pipeline.publish(abort_channel(prefix), payload)
        async with asyncio.timeout(streams.settings.redis_timeout):
            await pipeline.execute()
    except REDIS_ERRORS as error:
        log.warning("abort.not_sent uid=%s error=%s", uid, error)


async def is_asked(
    streams: Streams, uid: UUID, attempt: int, *, also: tuple[str, bytes] | None = None
) -> bool:
    """True when the flag of this attempt is set; a Redis that cannot answer counts as no.

    Args:
        also: Channel and payload of something to be published in the same round trip.
    """
    pipeline = streams.client.pipeline(transaction=False)
    pipeline.exists(abort_key(streams.settings.redis_prefix, uid, attempt))
    if also is not None:
        pipeline.publish(*also)
    try:
        async with asyncio.timeout(streams.settings.redis_timeout):
            return bool((await pipeline.execute())[0])
    except REDIS_ERRORS as error:
        log.debug("abort.unknown uid=%s error=%s", uid, error)
        return False


def read(payload: bytes) -> tuple[UUID, int] | None:
    """Return uid and attempt of a message on the abort channel, None for one that is not ours."""
    try:
        values = json.loads(payload)
        return UUID(values["uid"]), int(values["attempt"])
    except (ValueError, TypeError, KeyError, AttributeError):
        log.warning("abort.unreadable bytes=%d", len(payload))
        return None
