"""A second place that knows how far the ledger had come, so that a restored backup is noticed."""

import contextlib
from datetime import datetime

from think_celery.core.routing import witness_key
from think_celery.settings import Settings
from think_celery.stream.connection import REDIS_ERRORS, make_sync


def note(settings: Settings, at: datetime) -> None:
    """Note that the ledger has come as far as `at`; without effect while Redis is away."""
    with contextlib.suppress(*REDIS_ERRORS), contextlib.closing(make_sync(settings)) as client:
        client.set(witness_key(settings.redis_prefix), at.isoformat())


def seen(settings: Settings) -> datetime | None:
    """Return how far the ledger had come; None when nothing is known of that, or Redis is away."""
    with contextlib.suppress(*REDIS_ERRORS, ValueError), contextlib.closing(make_sync(settings)) as client:
        found = client.get(witness_key(settings.redis_prefix))
        return None if found is None else datetime.fromisoformat(_text(found))
    return None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
