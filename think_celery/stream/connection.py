"""Clients of Redis or Valkey: every call has a deadline, and nothing is sent twice unseen."""

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from think_celery.settings import Settings

Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""Entries of a Redis stream: id and fields."""
REDIS_ERRORS = (RedisError, OSError)
"""What a call to Redis may raise; `OSError` comes from name resolution and TLS."""

_CONNECTIONS = 50
# RESP2: in RESP3 redis-py 8.1 formats every pub/sub payload for a debug log, and asks each new server for
# maintenance notifications that Valkey does not have.
_PROTOCOL = 2


def is_away(error: BaseException) -> bool:
    """True for an error of anybody's use of Redis that says: not now, try again."""
    return isinstance(error, RedisConnectionError | RedisTimeoutError)


def make_async(settings: Settings) -> redis.asyncio.Redis:
    """Return a client for the process loop; no I/O yet.

    It never resends by itself: a writer has to know that an append may have happened already. Its calls have
    no deadline either: whoever makes one puts `asyncio.timeout(settings.redis_timeout)` around it.
    """
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        settings.redis_url.get_secret_value(),
        max_connections=_CONNECTIONS,
        timeout=settings.redis_timeout,
        protocol=_PROTOCOL,
        # With a socket timeout redis-py sends through `asyncio.wait_for`, which in Python 3.11 swallows a
        # cancellation that arrives as the send completes (python/cpython#86296): the reader would live on.
        socket_timeout=None,
        socket_connect_timeout=settings.redis_timeout,
        # A health check reads its own reply; on a subscriber's connection that is somebody else's message.
        health_check_interval=0,
        client_name=f"{settings.redis_prefix}-stream",
        retry=AsyncRetry(NoBackoff(), 0),
    )
    return redis.asyncio.Redis.from_pool(pool)


def make_sync(settings: Settings, *, timeout: float | None = None) -> redis.Redis:
    """Return a blocking client that threads may share; no I/O yet.

    A connection that the server closed meanwhile is replaced once; a timeout is never repeated, so that a
    call lasts little longer than its timeout.

    Args:
        settings: Where the server is.
        timeout: Seconds for connecting and for each reply; default `redis_timeout`.
    """
    seconds = settings.redis_timeout if timeout is None else timeout
    return redis.Redis.from_url(
        settings.redis_url.get_secret_value(),
        protocol=_PROTOCOL,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        # A call must not pay for a PING first; a connection that the server closed is found by looking.
        health_check_interval=0,
        client_name=f"{settings.redis_prefix}-signal",
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    )


def own_connection(client: redis.asyncio.Redis | redis.Redis) -> Any:
    """Return a new connection outside the client's pool, for a subscriber; untyped in redis-py."""
    pool: Any = client.connection_pool
    return pool.make_connection()


async def read_entries(client: redis.asyncio.Redis, *command: str | int) -> Entries:
    """Run XRANGE or XREVRANGE; once more when the server had closed the pooled connection."""
    execute: Any = client.execute_command
    try:
        return list(await execute(*command))
    except RedisConnectionError:
        return list(await execute(*command))
