"""What a worker process keeps running beside its tasks: one runtime, a heartbeat, and the periodic repair.

Everything is made in the process that uses it, after fork. With the threads and solo pools that is the worker
itself; with prefork each child has a runtime and a heartbeat of its own, and the parent, which runs no turns
and is never busy, does the repair.
"""

import logging
import os
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, bootsteps, current_app, signals
from kombu.asynchronous import get_event_loop

from think_celery.agent import registry
from think_celery.engine import arming, hooks, model, presence, schedules
from think_celery.engine.runtime import Runtime, use
from think_celery.engine.sweep import sweep
from think_celery.errors import LedgerUnavailable, ProcessClosing, ThinkError, WrongContext
from think_celery.settings import Settings
from think_celery.worker import pool as pools
from think_celery.worker.beat import RECONCILE, beat_entries
from think_celery.worker.publisher import CeleryPublisher

log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0
_COLD_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Binding:
    """How an app carries think-celery.

    Attributes:
        settings: Of this deployment.
        ready_made: True for an app of ours, whose worker options we decide.
    """

    settings: Settings
    ready_made: bool


bindings: "WeakKeyDictionary[Celery, Binding]" = WeakKeyDictionary()
"""The apps of this process that carry think-celery."""


class WorkerProcess:
    """This process' runtime and the threads around it.

    Args:
        app: The Celery app that carries the bells.
        settings: Of this deployment.
        pool: Plain name of the pool, for the ledger's list of workers.
    """

    def __init__(self, app: Celery, settings: Settings, *, pool: str) -> None:
        self.pid = os.getpid()
        self.app = app
        self.settings = settings
        self.pool = pool
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._introduced = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def runtime(self) -> Runtime:
        """Return the runtime, made at the first call; nothing is connected yet.

        Raises:
            LedgerUnavailable: This process is ending.
        """
        with self._lock:
            if self._stopping.is_set():
                raise LedgerUnavailable("this worker process is ending; the sweeper rings again")
            if self._runtime is None:
                self._runtime = Runtime(
                    self.settings, CeleryPublisher(self.app, self.settings), pool=self.pool
                )
                use(self._runtime)
            return self._runtime

    def introduced_runtime(self) -> Runtime:
        """Return the runtime as soon as the ledger knows this process, which must be before its first claim.

        Raises:
            LedgerUnavailable: The first heartbeat did not get through within `database_timeout`.
        """
        self.start(heartbeat=True, maintenance=False)
        if not self._introduced.wait(self.settings.database_timeout):
            raise LedgerUnavailable(
                "the ledger does not know this worker process yet; the sweeper rings again"
            )
        return self.runtime()

    def start(self, *, heartbeat: bool, maintenance: bool) -> None:
        """Start the threads that are not running yet; returns at once."""
        settings = self.settings
        with self._lock:
            if heartbeat:
                self._keep("think-heartbeat", settings.heartbeat_seconds, self._beat, at_once=True)
                # Beside the repair: it calls code of the agents, which may take its time.
                self._keep(
                    "think-schedules", settings.schedule_seconds, self._look_at_schedules, at_once=True
                )
            if maintenance:
                self._keep("think-maintenance", settings.sweep_seconds, self._sweep, at_once=False)

    def wind_down(self) -> None:
        """Let running turns finish and take no further ones."""
        with self._lock:
            runtime = self._runtime
        if runtime is not None:
            runtime.draining.set()
            threading.Thread(target=presence.draining, args=(runtime,), daemon=True).start()

    def finish_hooks(self) -> None:
        """Let response hooks end as turns have; another worker calls those that take over `hook_seconds`."""
        with self._lock:
            runtime = self._runtime
        if runtime is not None:
            with suppress(TimeoutError, ProcessClosing):
                runtime.loop.run(runtime.responding.rest(), timeout=self.settings.hook_seconds)

    def stop(self) -> None:
        """End the threads, take the process off the ledger, close its connections; seconds at most."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        with self._lock:
            runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        if self._introduced.is_set():
            _within(_STOP_SECONDS, lambda: presence.leave(runtime))
        runtime.close()

    def _keep(self, name: str, seconds: float, action: Callable[[], float | None], *, at_once: bool) -> None:
        if any(thread.name == name for thread in self._threads):
            return
        loop = _Loop(name, seconds, action, self._stopping, at_once=at_once)
        thread = threading.Thread(target=loop.run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _beat(self) -> float | None:
        presence.beat(self.runtime())
        self._introduced.set()
        return None

    def _look_at_schedules(self) -> float | None:
        runtime = self.runtime()
        arming.arm_classes(runtime)
        report = schedules.look(runtime)
        log.debug("schedules.looked report=%s", report)
        return None

    def _sweep(self) -> float | None:
        report = sweep(self.runtime())
        log.debug("sweep.done report=%s", report)
        return report.next_due_seconds


class _Loop:
    """Repeats an action until told to stop; failures are logged once per streak and never end it.

    The action may return after how many seconds it has to run again at the latest.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        action: Callable[[], float | None],
        stopping: threading.Event,
        *,
        at_once: bool,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        self._stopping = stopping
        self._at_once = at_once
        self._failed = False

    def run(self) -> None:
        delay = 0.0 if self._at_once else self._spread()
        while not self._stopping.wait(delay):
            latest = self._once()
            delay = self._seconds if self._at_once else self._spread()
            delay = delay if latest is None else min(delay, latest)

    def _spread(self) -> float:
        # Workers that start together must not repair together for ever.
        return random.uniform(0.8, 1.2) * self._seconds

    def _once(self) -> float | None:
        try:
            latest = self._action()
        except Exception as error:  # the next round tries again
            known = isinstance(error, ThinkError)
            level = logging.DEBUG if self._failed else logging.WARNING
            log.log(level, "%s.failed error=%s", self._name, error, exc_info=not known)
            self._failed = True
            return None
        if self._failed:
            log.info("%s.recovered", self._name)
        self._failed = False
        return latest


def _within(seconds: float, action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)


_process: WorkerProcess | None = None
_inherited: list[WorkerProcess] = []


def current_runtime() -> Runtime:
    """Return the runtime of this worker process, known to the ledger.

    Raises:
        LedgerUnavailable: The ledger could not be told of this process yet.
        WrongContext: The current Celery app carries no think-celery.
    """
    return current_process().introduced_runtime()


def current_process() -> WorkerProcess:
    """Return what this worker process keeps running, made at the first call and again after a fork.

    Raises:
        WrongContext: The current Celery app carries no think-celery.
    """
    if _process is not None and _process.pid == os.getpid():
        return _process
    app = current_app._get_current_object()
    binding = bindings.get(app)
    if binding is None:
        raise WrongContext(
            f"the Celery app {app.main!r} carries no think-celery; call think_celery.install(app)"
        )
    return begin(app, binding.settings, pool="eager")


def begin(app: Celery, settings: Settings, *, pool: str) -> WorkerProcess:
    """Make this process a worker process of the app; nothing is started yet."""
    global _process
    if _process is not None:
        _inherited.append(_process)  # a parent's connections must not be finalised in its child
    _process = WorkerProcess(app, settings, pool=pool)
    return _process


class ProcessStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the threads of a worker once its pool has forked, and ends them around the pool's own end."""

    label = "think-celery process"
    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        """Start heartbeat and repair; with prefork the children have the heartbeats."""
        current_process().start(heartbeat=pools.kind_of(worker.pool_cls) != "prefork", maintenance=True)

    def stop(self, worker: Any) -> None:
        """Nothing yet: turns still run and need their heartbeat; see `_worker_ended`."""

    def close(self, worker: Any) -> None:
        """Take no further turns; called before the pool is waited for."""
        current_process().wind_down()

    def terminate(self, worker: Any) -> None:
        """Cancel the turns: their threads would keep the process alive."""
        _end_turns()


def _worker_begins(sender: Any, **_: Any) -> None:
    """Before the pool is made: refuse what cannot work, load the agents, choose our threads pool."""
    binding = bindings.get(sender.app)
    if binding is None:
        return
    try:
        sender.pool_cls = pools.suitable(sender.pool_cls)
        pools.ColdStop.end_turns = staticmethod(_end_turns)
        _load(binding.settings.agents)
    except ThinkError as error:
        raise SystemExit(f"think-celery: {error}") from None
    if binding.ready_made:
        # Neither has a use here, and both talk to every other worker (celery#6089). They have no setting.
        sender.options.update(without_gossip=True, without_mingle=True)
    begin(sender.app, binding.settings, pool=pools.kind_of(sender.pool_cls))


def _load(agents: tuple[str, ...]) -> None:
    """Import the agent modules, from the current folder too, as `-A` does for the app itself."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, and for good: an agent may import its neighbours later
    registry.load(agents)
    if not all(hooks.overrides(registry.get(name), "on_chat_message") for name in registry.known()):
        model.load()  # two seconds now, instead of at somebody's first turn


def _worker_stops(**_: Any) -> None:
    """On SIGTERM: the hub looks at its state after its poll, which a signal does not end (PEP 475)."""
    hub = get_event_loop()
    if _process is not None and hub is not None:
        threading.Thread(target=hub.call_soon, args=(pools.nothing,), daemon=True).start()


def _end_turns() -> None:
    """Cancel what runs; in a thread and bounded: a signal handler may have interrupted a lock's holder."""
    process = _process
    if process is not None and process.pid == os.getpid():
        _within(_COLD_SECONDS, process.stop)


def _child_begins(**_: Any) -> None:
    if _process is None:
        return
    begin(_process.app, _process.settings, pool=_process.pool).start(heartbeat=True, maintenance=False)


def _child_ended(**_: Any) -> None:
    if _process is not None and _process.pid == os.getpid():
        _process.finish_hooks()
        _process.stop()


def _worker_ended(sender: Any, **_: Any) -> None:
    if sender.app in bindings:
        _child_ended()


def _beat_begins(sender: Any, **_: Any) -> None:
    """With beat comes a deployment, as a rule: have the declarations compared now and not in ten minutes."""
    app = sender.app
    if app not in bindings:
        return
    options = beat_entries(bindings[app].settings)[RECONCILE]["options"]
    try:
        app.send_task(RECONCILE, **options)
    except Exception as error:  # noqa: BLE001 - the broker is away; beat itself goes on trying
        log.warning("beat.reconcile_not_sent error=%s", error)


for _signal, _handler in (
    (signals.beat_init, _beat_begins),
    (signals.worker_init, _worker_begins),
    (signals.worker_shutting_down, _worker_stops),
    (signals.worker_process_init, _child_begins),
    (signals.worker_process_shutdown, _child_ended),
    (signals.worker_shutdown, _worker_ended),
):
    _signal.connect(_handler, weak=False, dispatch_uid=f"think-celery-{_handler.__name__}")
