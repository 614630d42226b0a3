"""Which lanes this process works off now, so that a bell for one of them costs nothing."""

import threading
import time
from enum import Enum

from think_celery.core.address import Address

FRESH_SECONDS = 0.1
"""A bell during a longer turn asks the ledger: it may be about something else than a row that waits."""


class Place(Enum):
    """What a bell may do with its lane."""

    OWNER = "owner"
    """Work it off, and look again when asked to before `end`."""
    ANSWERED = "answered"
    """Nothing: the owner looks again."""
    GUEST = "guest"
    """Ask the ledger; the owner is in a long turn."""


class Desk:
    """One process' lanes in work; callable from any thread.

    A bell that finds its lane here asks the owner to look once more before it ends. The row was committed
    before the bell was sent, so that look finds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[Address, _Work] = {}

    def begin(self, address: Address) -> Place:
        """Take a lane into work, or ask who has it to look again."""
        now = time.monotonic()
        with self._lock:
            work = self._lanes.get(address)
            if work is None:
                self._lanes[address] = _Work(now)
                return Place.OWNER
            if now - work.since >= FRESH_SECONDS:
                return Place.GUEST
            work.again = True
            return Place.ANSWERED

    def turn(self, address: Address) -> None:
        """Note that a turn begins."""
        with self._lock:
            if (work := self._lanes.get(address)) is not None:
                work.since, work.in_turn = time.monotonic(), True

    def turn_over(self, address: Address) -> None:
        """Note that a turn has let go of its lane, or handed it on; its status hooks may still be called."""
        with self._lock:
            if (work := self._lanes.get(address)) is not None:
                work.in_turn = False

    def in_turn(self, address: Address) -> bool:
        """True while a turn of the lane runs in this process."""
        work = self._lanes.get(address)
        return work is not None and work.in_turn

    def end(self, address: Address, *, for_good: bool) -> bool:
        """Put a lane away; False when a bell asked for another look first, unless it ends for good."""
        with self._lock:
            work = self._lanes.get(address)
            if work is not None and work.again and not for_good:
                work.again, work.since = False, time.monotonic()
                return False
            self._lanes.pop(address, None)
            return True


class _Work:
    __slots__ = ("again", "in_turn", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.again = self.in_turn = False
