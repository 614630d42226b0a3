"""Times on the command line: an instant with its time zone, or a length such as 10m."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from think_celery.errors import InvalidInput

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_LENGTH = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def later(option: str, text: str | None) -> datetime | None:
    """Return the instant that is meant, a length counting from now on; None for None.

    Raises:
        InvalidInput: It is neither a length nor an instant with a time zone.
    """
    return _instant(option, text, lambda length: datetime.now(UTC) + length)


def earlier(option: str, text: str | None) -> datetime | None:
    """Return the instant that is meant, a length counting back from now; None for None.

    Raises:
        InvalidInput: It is neither a length nor an instant with a time zone.
    """
    return _instant(option, text, lambda length: datetime.now(UTC) - length)


def length(option: str, text: str | None) -> timedelta | None:
    """Return a length of time; a bare number is seconds, None is None.

    >>> [str(length("--run-timeout", text)) for text in ("90", "1.5h", "1h30m", "2d")]
    ['0:01:30', '1:30:00', '1:30:00', '2 days, 0:00:00']

    Raises:
        InvalidInput: It is no length of time.
    """
    if text is None:
        return None
    try:
        found = _length(f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) else text)
    except OverflowError:
        raise InvalidInput(option, f"{text!r} is longer than anybody can wait") from None
    if found is None:
        raise InvalidInput(option, f"{text!r} is no length of time; write for example 90s, 10m or 1h30m")
    return found


def _instant(option: str, text: str | None, count: Callable[[timedelta], datetime]) -> datetime | None:
    if text is None:
        return None
    try:
        distance = _length(text)
        found = datetime.fromisoformat(text) if distance is None else count(distance)
        zoned = found.utcoffset() is not None
        return found.astimezone(UTC) if zoned else _without_zone(option, text)
    except OverflowError:
        raise InvalidInput(option, f"{text!r} is beyond the calendar") from None
    except InvalidInput:
        raise
    except ValueError:
        example = "write for example 10m, or an instant such as 2030-01-31T09:00:00Z"
        raise InvalidInput(option, f"{text!r} is no time; {example}") from None


def _without_zone(option: str, text: str) -> datetime:
    raise InvalidInput(option, f"{text!r} has no time zone; end it with Z or an offset such as +02:00")


def _length(text: str) -> timedelta | None:
    if not _LENGTH.fullmatch(text):
        return None
    return sum(
        (timedelta(**{_UNITS[unit]: float(count)}) for count, unit in _PART.findall(text)), timedelta()
    )
