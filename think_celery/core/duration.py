"""Durations as callers give them."""

import sys
from datetime import timedelta

from think_celery.errors import InvalidInput


def seconds(timeout: float | timedelta | None, *, field: str = "timeout") -> float | None:
    """Return a public timeout in seconds, None for no limit.

    Raises:
        InvalidInput: Negative or not a number.
    """
    if timeout is None:
        return None
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidInput(field, f"{timeout!r} is not a number of seconds from 0 on; None means no limit")
    return float(min(value, sys.float_info.max))
