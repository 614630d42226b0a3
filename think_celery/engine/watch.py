"""Notice that an event loop stands still, and name the code that holds it.

One blocking call in a coroutine stops every turn of the process, and nothing of the process tells: its
heartbeat has a thread of its own. So a thread asks the loop for a sign of life, and looks at the loop's stack
when none comes.
"""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0
_LOOKS_PER_STALL = 5
_JOIN_SECONDS = 1.0
_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Watch:
    """Logs `loop.blocked` once per stall of a loop, and `loop.unblocked` when it goes on.

    Args:
        loop: Runs in `thread`.
        thread: Is running.
        stall_seconds: How long the loop may take to answer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, *, stall_seconds: float
    ) -> None:
        self._loop = loop
        self._watched = thread
        self._stall_seconds = stall_seconds
        self._tick_seconds = min(stall_seconds, _TICK_SECONDS)
        self._look_seconds = min(stall_seconds / _LOOKS_PER_STALL, _TICK_SECONDS)
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="think-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; called before the loop ends."""
        self._stopped.set()
        self._answered.set()
        self._thread.join(_JOIN_SECONDS)

    def _serve(self) -> None:
        while True:
            took, worked = _wait(self._stopped, self._tick_seconds)
            # What this thread overslept while the process worked, another kept the interpreter for itself.
            overslept = max(0.0, min(took, worked) - self._tick_seconds)
            if self._stopped.is_set() or not self._ask(overslept):
                return

    def _ask(self, seconds: float) -> bool:
        """Wait for a sign of life, and tell of a loop that gives none; False once it is closed.

        Args:
            seconds: For how long it has stood still already.
        """
        culprit = self._report(seconds)  # before the interpreter is let go, and with it the culprit
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            return False
        while not (self._answered.is_set() or self._stopped.is_set()):
            culprit = culprit or self._report(seconds)
            took, worked = _wait(self._answered, self._look_seconds)
            # A wait that was itself held up counts in full only if the process worked: else the machine was
            # suspended, or the process stopped.
            seconds += min(took, max(2 * self._look_seconds, worked))
        if culprit is not None and not self._stopped.is_set():
            log.info("loop.unblocked at=%s seconds=%.1f", culprit, seconds)
        return True

    def _report(self, seconds: float) -> str | None:
        culprit = _culprit(self._watched) if seconds >= self._stall_seconds else None
        if culprit is not None:
            log.warning("loop.blocked at=%s seconds=%.1f", culprit, seconds)
        return culprit


def _wait(event: threading.Event, seconds: float) -> tuple[float, float]:
    """Wait for an event; returns for how long, and for how long the process computed meanwhile."""
    began, worked = time.monotonic(), time.process_time()
    event.wait(seconds)
    return time.monotonic() - began, time.process_time() - worked


def _culprit(thread: threading.Thread) -> str | None:
    """Return place and function that a loop's thread is at; None when it only waits for its next event.

    The innermost frame of the application, or the innermost of all when it has none there.
    """
    frames = list(_frames(thread))
    if not frames or _is_waiting(frames):
        return None
    frame = next((each for each in frames if _is_application(each)), frames[0])
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


def _frames(thread: threading.Thread) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_waiting(frames: list[FrameType]) -> bool:
    """True in the loop's own wait for events: a machine with too much to do, not a call that blocks."""
    modules = [frame.f_globals.get("__name__") for frame in frames[:2]]
    return modules == ["selectors", "asyncio.base_events"] or modules[0] == f"{_PACKAGE}.engine.loop"


def _is_application(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    file = frame.f_code.co_filename
    is_library = file.startswith(("<", *_LIBRARIES)) or "site-packages" in Path(file).parts
    return not is_library and module.partition(".")[0] != _PACKAGE
