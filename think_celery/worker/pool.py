"""The pools: threads that tell the hub when a slot is free, cold shutdowns that end, and no green threads."""

from collections.abc import Callable
from typing import Any

from celery.concurrency import solo, thread
from celery.worker import state

from think_celery.errors import InvalidSettings

_GREEN = ("gevent", "eventlet")


def nothing() -> None:
    """Do nothing; given to a hub, it ends the hub's wait."""


class ColdStop:
    """What Celery's pools in one process lack for a cold shutdown (SIGQUIT): it ends the turns that run."""

    end_turns: Callable[[], None] = staticmethod(nothing)
    """Cancels the turns of this process within seconds; set when a worker begins."""

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: one job cannot be ended from outside.

        A cold shutdown asks for it, and Celery's own pools raise, which makes it a warm one.
        """

    def on_stop(self) -> None:
        """End the turns first if the shutdown is a cold one: the pool's own end waits for them."""
        if state.should_terminate not in (None, False):
            self.end_turns()
        super().on_stop()  # type: ignore[misc]


class TaskPool(ColdStop, thread.TaskPool):  # type: ignore[misc]
    """Celery's threads pool, which polls for the next message as soon as a job ends.

    Without prefetching, kombu asks for a message only when a slot is free, and looks at the slots when
    something wakes its hub. A child of a prefork pool does that with its result; a thread does not, so a
    freed slot would wait for up to a second.
    """

    _hub: Any = None

    def register_with_event_loop(self, hub: Any) -> None:
        """Remember the hub; called by the worker before its loop starts, again after a reconnect."""
        self._hub = hub

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        """Hand a job to a thread; its end wakes the hub."""
        result = super().on_apply(*args, **kwargs)
        result.f.add_done_callback(self._wake)
        return result

    def _wake(self, _: Any) -> None:
        if self._hub is not None:
            self._hub.call_soon(nothing)  # thread-safe, and ends the hub's wait (kombu >= 5.7)


class SoloPool(ColdStop, solo.TaskPool):  # type: ignore[misc]
    """Celery's solo pool with a cold shutdown that ends."""


_OURS: dict[str, type] = {
    "threads": TaskPool,
    "solo": SoloPool,
    "celery.concurrency.thread:TaskPool": TaskPool,
    "celery.concurrency.solo:TaskPool": SoloPool,
}


def kind_of(pool: Any) -> str:
    """Return the plain name of a pool that is given as alias, path or class: `threads`, `prefork`, …"""
    path = _path(pool)
    ours = _OURS.get(path) or next((known for known in (TaskPool, SoloPool) if _path(known) == path), None)
    if ours is not None:
        return "threads" if ours is TaskPool else "solo"
    module = path.partition(":")[0].rpartition(".")[2]
    return {"processes": "prefork", "thread": "threads"}.get(module, module)


def suitable(pool: Any) -> Any:
    """Return the pool to use for the one that was asked for: ours in place of Celery's own.

    Raises:
        InvalidSettings: The pool cannot run turns.
    """
    kind = kind_of(pool)
    if kind in _GREEN:
        raise InvalidSettings(
            f"the {kind} pool cannot run turns: they need an event loop and a heartbeat in real threads; "
            "start the worker with `-P threads` (the default), `-P prefork` or `-P solo`"
        )
    return _OURS.get(_path(pool), pool)


def _path(pool: Any) -> str:
    return pool if isinstance(pool, str) else f"{pool.__module__}:{pool.__qualname__}"
