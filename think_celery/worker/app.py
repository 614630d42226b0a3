"""Celery apps that carry think-celery: our own, and the one that a team already has."""

import os
import threading
from typing import Any

from celery import Celery

from think_celery.engine.runtime import bind
from think_celery.settings import Settings, load_settings
from think_celery.worker import tasks
from think_celery.worker.beat import beat_entries
from think_celery.worker.config import celery_config
from think_celery.worker.process import Binding, ProcessStep, bindings
from think_celery.worker.publisher import CeleryPublisher
from think_celery.worker.subscriber import SubscriberStep

_apps: dict[tuple[int, Settings], Celery] = {}
_lock = threading.Lock()


def build_app(settings: Settings) -> Celery:
    """Return a Celery app that serves think-celery alone; every setting is explained in `worker/config.py`.

    Args:
        settings: Where the servers are, which pool, which queue scope.
    """
    app = Celery("think", set_as_current=False)
    app.conf.update(celery_config(settings))
    _attach(app, Binding(settings, ready_made=True))
    return app


def install(app: Celery, settings: Settings | None = None) -> Celery:
    """Make a Celery app that a team already has carry think-celery as well.

    Added are tasks whose names begin with `think.`, the beat entries (plain intervals, for any scheduler), a
    step that keeps heartbeat and repair running in its workers, and a step that consumes the agents' queues.
    No setting is changed (the entries are added to `beat_schedule`); what the tasks need is said on the tasks
    and with every message. Call it where the app is made, in every process that uses the app; calling it
    again is harmless.

    What the app's own settings mean for turns:

    * **Prefetching.** With `worker_disable_prefetch` the agents' queues share the app's consumer, and show up
      in Flower's list of queues. Without it they are consumed on a channel of their own, so that the app's
      tasks are prefetched as before, while bells are fetched only as long as fewer of them than the pool has
      slots are running or waiting in this worker. A bell may therefore wait behind the app's own long tasks
      while another worker is idle. That is harmless: the ledger decides what runs, and the sweeper rings
      again elsewhere.
    * **Threads pool.** `-P threads` gets a subclass of Celery's pool that asks for the next message as soon
      as a thread is free. gevent and eventlet are refused at worker start.
    * **Time limits.** A hard `task_time_limit` of the app ends turns, too; the ledger then runs the turn
      again.
    * **JSON.** The app must accept it (`accept_content`); a worker that does not says so at its start.
    * **-Q.** A worker started with `-Q` consumes the queues named there and nothing else.

    Args:
        app: The team's app.
        settings: Default: `load_settings()`.

    Returns:
        The same app.

    Raises:
        InvalidSettings: A setting cannot be used.
        StackNotRunning: No settings are given and nothing says where the servers are.
    """
    chosen = settings or load_settings()
    _attach(app, Binding(chosen, ready_made=False))
    for name, entry in beat_entries(chosen).items():
        app.add_periodic_task(entry["schedule"], app.signature(entry["task"]), name=name, **entry["options"])
    bind(lambda settings: CeleryPublisher(app, settings), chosen)
    return app


def default_app(settings: Settings) -> Celery:
    """Return the app that producers publish through: one per process and settings."""
    key = (os.getpid(), settings)
    with _lock:
        for stale in [other for other in _apps if other[0] != key[0]]:
            del _apps[stale]  # a forked child must not use its parent's connections
        if key not in _apps:
            _apps[key] = build_app(settings)
        return _apps[key]


def default_publisher(settings: Settings) -> CeleryPublisher:
    """Return what carries a producer's bells: the default app with connections of its own."""
    return CeleryPublisher(default_app(settings), settings)


def _attach(app: Celery, binding: Binding) -> None:
    bindings[app] = binding
    tasks.register(app)
    steps: dict[str, set[Any]] = app.steps
    steps["worker"].add(ProcessStep)
    steps["consumer"].add(SubscriberStep)
