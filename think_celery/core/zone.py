"""Time zones, from the `tzdata` package alone: the rules do not depend on the machine."""

from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from tzdata import IANA_VERSION

from think_celery.core.failure import shown
from think_celery.errors import InvalidSchedule

VERSION: str = IANA_VERSION
"""The edition of the zone rules, such as `2026f`; stored with each instant that was computed from them."""

_DATA = files("tzdata")
_RULES = "zoneinfo"
_NOT_A_PLACE = {"Factory"}


def find_zone(name: object) -> str:
    """Return a zone's name as the zone database spells it, whatever the case of `name` (C 1.4).

    >>> find_zone("europe/london")
    'Europe/London'

    Raises:
        InvalidSchedule: There is no such zone.
    """
    known = _names().get(name.lower()) if isinstance(name, str) else None
    if known is None:
        problem = f"Invalid timezone {shown(name)}; use a name of the zone database, such as Europe/London"
        raise InvalidSchedule("TIMEZONE_INVALID", problem)
    return known


def same_zone(one: str, other: str) -> bool:
    """Return whether two names, as `find_zone` gave them, mean one zone.

    >>> same_zone("Asia/Calcutta", "Asia/Kolkata"), same_zone("GMT", "UTC")
    (True, True)
    """
    return _target(one) == _target(other)


@cache
def load_zone(name: str) -> ZoneInfo:
    """Return the rules of a zone.

    Raises:
        InvalidSchedule: There is no such zone, in this exact spelling; a newer database may have dropped it.
    """
    if find_zone(name) != name:
        raise InvalidSchedule("TIMEZONE_INVALID", f"Invalid timezone {shown(name)}")
    with _DATA.joinpath(_RULES, *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)


def local_reading(at: datetime, zone: ZoneInfo) -> datetime:
    """Return what a clock on the wall shows at an instant, as a naive datetime."""
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def instants_of(reading: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return when clocks show a reading: once as a rule, twice in an overlap, never in a gap."""
    found = {reading.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(at for at in found if local_reading(at, zone) == reading)


def _target(name: str) -> str:
    target = _links().get(name, name)
    # The one pair of zones without a difference that the database does not link.
    return "Etc/UTC" if target == "Etc/GMT" else target


@cache
def _names() -> dict[str, str]:
    names = _DATA.joinpath("zones").read_text(encoding="ascii").split()
    return {name.lower(): name for name in names if name not in _NOT_A_PLACE}


@cache
def _links() -> dict[str, str]:
    lines = _DATA.joinpath(_RULES, "tzdata.zi").read_text(encoding="ascii").splitlines()
    return {line.split()[2]: line.split()[1] for line in lines if line.startswith("L ")}
