"""Finish webhooks: tell receivers outside of ended submissions, at least once, without holding anybody up.

The step that ends a submission writes the outbox. Worker processes take from there: at once when they ended
the submission or hear a bell, and in every sweep. Processes that only submit never deliver, as they need not
have the secret nor a way out; they ring.
"""

import asyncio
import logging
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from urllib.parse import urlsplit

from think_celery.core import webhook
from think_celery.core.address import Address
from think_celery.engine import posting
from think_celery.engine.posting import Failure, Post
from think_celery.engine.runtime import PRODUCER, Runtime, in_ledger_pool
from think_celery.errors import ServiceError
from think_celery.ledger import webhooks as outbox
from think_celery.ledger.rows import submission_of
from think_celery.ledger.webhooks import Due

log = logging.getLogger(__name__)
_GIVE_UP = timedelta(hours=12)
_MARGIN = timedelta(seconds=30)
"""Beyond the time for the request: for the first import, and for writing down how it went."""
_GATHER_SECONDS = 0.1
"""A burst of ended submissions, or of bells, costs one look at the outbox per this time."""


def deliver(runtime: Runtime) -> int:
    """Deliver what is due, at most 25 at once, and return how many receivers took theirs."""
    return runtime.loop.run(_pass(runtime))


def poke(runtime: Runtime) -> None:
    """Look at the outbox soon, in the background; never waits and never raises."""
    if runtime.pool != PRODUCER and not runtime.closing.is_set() and runtime.deliveries.ask():
        runtime.loop.send_off(_errand(runtime))


def poke_if_due(runtime: Runtime) -> None:
    """The sweep's part: find what nobody was told of, such as the webhooks of a process that died.

    Raises:
        LedgerUnavailable: PostgreSQL is away; the next sweep looks again.
    """
    if outbox.is_due(runtime.database):
        poke(runtime)


def ring(runtime: Runtime, address: Address) -> None:
    """Let a worker look at the outbox, when this process does not deliver."""
    if runtime.pool == PRODUCER:
        runtime.ring_lane(address)


async def _errand(runtime: Runtime) -> None:
    await asyncio.sleep(_GATHER_SECONDS)
    await _pass(runtime)


async def _pass(runtime: Runtime) -> int:
    due = await _take(runtime)
    return sum(await asyncio.gather(*(_one(runtime, one) for one in due)))


async def _take(runtime: Runtime) -> list[Due]:
    deliveries = runtime.deliveries
    async with deliveries.looking:
        deliveries.begin()
        if deliveries.free == 0:
            return []
        lease = timedelta(seconds=runtime.settings.webhook_timeout) + _MARGIN
        claim = partial(outbox.claim, runtime.database, lease=lease, limit=deliveries.free)
        try:
            due = await in_ledger_pool(runtime, claim)
        except ServiceError as error:
            log.warning("webhook.claim_failed error=%s", error)
            return []
        deliveries.take(len(due))
    return due


async def _one(runtime: Runtime, due: Due) -> bool:
    try:
        failure = await _attempt(runtime, due)
        wait = await in_ledger_pool(runtime, partial(_record, runtime, due, failure))
    except ServiceError as error:
        log.warning("webhook.not_recorded webhook=%s error=%s", due.webhook_id, error)
        return False
    finally:
        runtime.deliveries.release()
        if runtime.deliveries.more:
            poke(runtime)
    if wait is not None and wait < runtime.settings.sweep_seconds:  # sooner than a sweep would
        asyncio.get_running_loop().call_later(wait, poke, runtime)
    return failure is None


async def _attempt(runtime: Runtime, due: Due) -> Failure | None:
    settings = runtime.settings
    try:
        return await posting.send(
            _post(runtime, due),
            seconds=settings.webhook_timeout,
            allow_private=settings.webhook_allow_private,
            pool=runtime.deliveries.pool,
        )
    except Exception as error:  # one that nobody foresaw must not end the others' deliveries
        log.exception("webhook.broken webhook=%s", due.webhook_id)
        return Failure(f"{type(error).__name__}: {error}")


def _post(runtime: Runtime, due: Due) -> Post:
    submission = submission_of(due.row)
    secret = runtime.settings.webhook_secret
    body = webhook.body(due.webhook_id, submission)
    headers = webhook.headers(
        due.webhook_id,
        submission.submission_id,
        timestamp=int(due.claimed_at.timestamp()),
        body=body,
        secret=None if secret is None else secret.get_secret_value(),
    )
    return Post(due.url, body, {**headers, "user-agent": f"think-celery/{version('think-celery')}"})


def _record(runtime: Runtime, due: Due, failure: Failure | None) -> float | None:
    """Write down how an attempt went; returns the seconds until the next one, None if there is none."""
    if failure is None:
        outbox.finish(runtime.database, due.webhook_id)
        log.info("webhook.delivered %s", _told(due))
        return None
    if failure.final:
        outbox.finish(runtime.database, due.webhook_id)
        log.error("webhook.given_up %s error=%s", _told(due), failure.error)
        return None
    wait = webhook.retry_seconds(due.attempts)
    later = timedelta(seconds=wait)
    if outbox.postpone(runtime.database, due, error=failure.error, wait=later, give_up=_GIVE_UP):
        log.error("webhook.given_up %s error=%s", _told(due), failure.error)
        return None
    log.warning("webhook.failed %s error=%s", _told(due), failure.error)
    return wait


def _told(due: Due) -> str:
    """What logs may know: the receiver's host, but neither path nor query, which often hold a secret."""
    host = urlsplit(due.url).hostname
    return (
        f"webhook={due.webhook_id} submission={due.row['submission_id']} host={host} attempt={due.attempts}"
    )
