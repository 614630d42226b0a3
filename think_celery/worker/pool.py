"""The pools: threads that tell the hub when a slot is free, and a clear no to green threads."""

from typing import Any

from celery.concurrency import thread

from think_celery.errors import InvalidSettings

_THREADS = ("threads", "celery.concurrency.thread:TaskPool")
_GREEN = ("gevent", "eventlet")


class TaskPool(thread.TaskPool):  # type: ignore[misc]
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

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: a thread cannot be ended from outside, the runtime cancels the turns when it closes.

        A cold shutdown asks for it, and Celery's own pool raises, which turns the cold shutdown into a warm one.
        """

    def _wake(self, _: Any) -> None:
        if self._hub is not None:
            self._hub.call_soon(nothing)  # thread-safe, and ends the hub's wait (kombu >= 5.7)


def nothing() -> None:
    """Do nothing; given to a hub, it ends the hub's wait."""


def kind_of(pool: Any) -> str:
    """Return the plain name of a pool that is given as alias, path or class: `threads`, `prefork`, …"""
    path = pool if isinstance(pool, str) else f"{pool.__module__}:{pool.__qualname__}"
    if path in _THREADS or (isinstance(pool, type) and issubclass(pool, thread.TaskPool)):
        return "threads"
    if path == "think_celery.worker.pool:TaskPool":
        return "threads"
    module = path.partition(":")[0].rpartition(".")[2]
    return "prefork" if module == "processes" else module


def suitable(pool: Any) -> Any:
    """Return the pool to use for the one that was asked for: our threads for Celery's.

    Raises:
        InvalidSettings: The pool cannot run turns.
    """
    kind = kind_of(pool)
    if kind in _GREEN:
        raise InvalidSettings(
            f"the {kind} pool cannot run turns: they need an event loop and a heartbeat in real threads; "
            "start the worker with `-P threads` (the default), `-P prefork` or `-P solo`"
        )
    path = pool if isinstance(pool, str) else f"{pool.__module__}:{pool.__qualname__}"
    return TaskPool if path in _THREADS else pool
