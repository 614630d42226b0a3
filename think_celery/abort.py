"""Abort signals: one side says stop, any number of others hear it, in threads and in coroutines alike.

Nothing here waits for a lock. Every step is a single operation on a dict or a queue, which CPython does as a
whole, so `abort` may be called in any thread, in a listener, and in a signal handler that interrupted this
very code. A signal of `any` leaves nothing with its sources, and one of `timeout` runs no timer, except while
somebody listens to it.
"""

import asyncio
import heapq
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple, NoReturn

from think_celery.core.duration import seconds as in_seconds
from think_celery.errors import AbortError

log = logging.getLogger(__name__)
_LONGEST_NAP_SECONDS = 3600.0
_PURGE_FROM = 1000


class _End(NamedTuple):
    at: float
    reason: object


class AbortSignal:
    """Says whether, and why, something is to be stopped; made by an `AbortController`, `timeout` or `any`.

    Belongs to its process and cannot be pickled. Once aborted it stays so, with its first reason.
    """

    __slots__ = ("__weakref__", "_ends", "_listeners")

    def __init__(self) -> None:
        self._ends: dict[None, _End] = {}  # at most one: `setdefault` decides who was first
        self._listeners: dict[object, tuple[Callable[[], object] | None, list[Callable[[], None]]]] = {}

    @staticmethod
    def timeout(seconds: float | timedelta | None) -> "AbortSignal":
        """Return a signal that is aborted after so many seconds, with a `TimeoutError` as its reason.

        With None it never is.

        Raises:
            InvalidInput: Negative or not a number.
        """
        limit = in_seconds(seconds, field="seconds")
        return AbortSignal() if limit is None else _Timeout(limit)

    @staticmethod
    def any(*signals: "AbortSignal") -> "AbortSignal":
        """Return a signal that is aborted with the first of these, for its reason; without any, never."""
        return _Any(signals)

    @property
    def aborted(self) -> bool:
        """True once it was aborted."""
        return self._end() is not None

    @property
    def reason(self) -> object:
        """What the first abort said; None before, and when it said nothing."""
        end = self._end()
        return None if end is None else end.reason

    @property
    def listener_count(self) -> int:
        """Listeners that wait for the abort, waiting calls included."""
        return len(self._listeners)

    def throw_if_aborted(self) -> None:
        """Do nothing before the abort.

        Raises:
            AbortError: It was aborted; says the reason, and is raised from it when that is an exception.
        """
        if (end := self._end()) is not None:
            cause = end.reason if isinstance(end.reason, BaseException) else None
            raise AbortError(None if end.reason is None else str(end.reason)) from cause

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call a function, without arguments, once when the signal is aborted; at once if it already is.

        Args:
            listener: Is called in the thread that aborts, or in the alarm thread of all timeouts, so it must
                not block. What it raises is logged.

        Returns:
            A function that removes it, which may be called any number of times. Returning from that does not
            mean that a call of the listener in another thread has ended.
        """
        key, undo = object(), list[Callable[[], None]]()
        self._listeners[key] = (listener, undo)
        tell = partial(self._tell, key)
        if not self.aborted:
            for removal in self._attach(tell):
                undo.append(removal)
        if self.aborted:
            tell()
        if key not in self._listeners:  # perhaps told while it was being attached
            for removal in undo:
                removal()
        return partial(self._forget, key)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until it is aborted or the time is up; True when it is aborted.

        Raises:
            InvalidInput: The timeout is negative or not a number.
        """
        limit = in_seconds(timeout)
        gate = threading.Lock()  # unlike an Event it may be opened in a signal handler
        gate.acquire()
        remove = self.add_listener(gate.release)
        try:
            gate.acquire(timeout=-1 if limit is None else min(limit, threading.TIMEOUT_MAX))
        finally:
            remove()
        return self.aborted

    async def wait_async(self) -> None:
        """Wait until it is aborted, on any event loop; a cancelled wait leaves nothing behind."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed under the waiting coroutine
                loop.call_soon_threadsafe(_resolve, told)

        remove = self.add_listener(wake)
        try:
            await told
        finally:
            remove()

    def _find(self) -> _End | None:
        """Look whether the signal has ended without having been told."""
        return None

    def _attach(self, tell: Callable[[], None]) -> Iterable[Callable[[], None]]:
        """See to it that `tell` is called at the end; yields what undoes it."""
        return ()

    def _end(self) -> _End | None:
        end = self._ends.get(None)
        if end is None and (found := self._find()) is not None:
            end = self._ends.setdefault(None, found)
        return end

    def _settle(self, reason: object) -> None:
        end = _End(time.monotonic(), reason)
        if self._ends.setdefault(None, end) is end:
            # A listener that is added from here on sees the end by itself; popping tells who calls it.
            for key in list(self._listeners):
                self._tell(key)

    def _take(self, key: object) -> Callable[[], object] | None:
        listener, undo = self._listeners.pop(key, (None, []))
        for removal in undo:
            removal()
        return listener

    def _tell(self, key: object) -> None:
        listener = self._take(key)
        if listener is not None:
            try:
                listener()
            except Exception:
                log.exception("abort.listener_failed listener=%r", listener)

    def _forget(self, key: object) -> None:
        self._take(key)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an abort signal works in its own process only; across processes use cancel_chat")

    def __repr__(self) -> str:
        end = self._end()
        return f"<{type(self).__name__} {'waiting' if end is None else f'aborted: {end.reason!r}'}>"


class AbortController:
    """The side that says stop: hand out `signal`, call `abort`."""

    __slots__ = ("__weakref__", "_signal")

    def __init__(self) -> None:
        self._signal = AbortSignal()

    @property
    def signal(self) -> AbortSignal:
        """The signal that `abort` aborts; the same at every look."""
        return self._signal

    def abort(self, reason: object = None) -> None:
        """Abort the signal and call its listeners; only the first call does anything.

        Args:
            reason: Why, for people; an exception or anything else that `str` tells. None says nothing.
        """
        self._signal._settle(reason)


class _Timeout(AbortSignal):
    __slots__ = ("_deadline", "_reason")

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._deadline = time.monotonic() + seconds
        self._reason = TimeoutError(f"the time limit of {seconds:g} s is over")

    def _find(self) -> _End | None:
        return _End(self._deadline, self._reason) if time.monotonic() >= self._deadline else None

    def _attach(self, tell: Callable[[], None]) -> Iterable[Callable[[], None]]:
        yield _alarm().set(self._deadline, tell)


class _Any(AbortSignal):
    __slots__ = ("_sources",)

    def __init__(self, sources: tuple[AbortSignal, ...]) -> None:
        super().__init__()
        self._sources = sources

    def _find(self) -> _End | None:
        ends = [end for source in self._sources if (end := source._end()) is not None]
        return min(ends, key=lambda end: end.at, default=None)

    def _attach(self, tell: Callable[[], None]) -> Iterable[Callable[[], None]]:
        for source in self._sources:
            yield source.add_listener(tell)


@dataclass(slots=True, order=True)
class _Bell:
    at: float
    ring: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        self.ring = None


class _Alarm(threading.Thread):
    """Calls functions at their times, all from one thread, which sleeps as long as none is due."""

    def __init__(self) -> None:
        super().__init__(name="think-alarm", daemon=True)
        self._new: SimpleQueue[_Bell] = SimpleQueue()

    def set(self, at: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call a function at a monotonic time; returns what cancels that and lets go of it."""
        bell = _Bell(at, ring)
        self._new.put(bell)
        return bell.cancel

    def run(self) -> None:
        bells: list[_Bell] = []
        limit = _PURGE_FROM
        while True:
            with suppress(Empty):
                heapq.heappush(bells, self._new.get(timeout=_nap(bells)))
            while bells and (bells[0].ring is None or bells[0].at <= time.monotonic()):
                _ring(heapq.heappop(bells))
            if len(bells) > limit:  # most of them may be cancelled
                bells = [bell for bell in bells if bell.ring is not None]
                heapq.heapify(bells)
                limit = max(_PURGE_FROM, 2 * len(bells))


def _nap(bells: list[_Bell]) -> float | None:
    return min(max(bells[0].at - time.monotonic(), 0.0), _LONGEST_NAP_SECONDS) if bells else None


def _ring(bell: _Bell) -> None:
    ring = bell.ring
    if ring is not None:
        try:
            ring()
        except BaseException:  # even SystemExit: the timeouts of the whole process depend on this thread
            log.exception("abort.alarm_failed")


_alarms: dict[int, _Alarm] = {}


def _alarm() -> _Alarm:
    """Return this process' alarm; a forked child has a thread of its own."""
    pid = os.getpid()
    if pid not in _alarms:
        mine = _Alarm()
        if _alarms.setdefault(pid, mine) is mine:
            mine.start()
    return _alarms[pid]


def _resolve(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)
