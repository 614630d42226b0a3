"""Everything that one process needs to take part: made after fork, closed at exit."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TypeVar
from uuid import UUID, uuid4

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.dispatch import Dispatcher, Publisher
from think_celery.engine.calls import Calls
from think_celery.engine.deliveries import Deliveries
from think_celery.engine.desk import Desk
from think_celery.engine.loop import LoopThread
from think_celery.engine.model import close_models
from think_celery.engine.responding import Responding
from think_celery.engine.running import Running
from think_celery.ledger.database import Database
from think_celery.ledger.workers import Worker
from think_celery.settings import Settings, load_settings
from think_celery.stream.announce import Announcer
from think_celery.stream.hub import Streams

log = logging.getLogger(__name__)
T = TypeVar("T")
PRODUCER = "producer"
"""The pool's name of a process that only hands over work."""
_TRY_SECONDS = 60.0
_TRIED_AGENTS = 10_000


class View:
    """Since when this process has read the ledger without a gap.

    After an outage of PostgreSQL every heartbeat looks stale; only who watched for a whole lease may judge.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = 0.0

    def gain(self, now: float, *, gap: float) -> float:
        """Note a successful read at `now` (monotonic) and return the seconds of unbroken view."""
        if self._since is None or now - self._last > gap:
            self._since = now
        self._last = now
        return now - self._since

    def lose(self) -> None:
        """Note a failed read."""
        self._since = None


class Arming:
    """What this process knows of the declared schedules of its classes."""

    def __init__(self) -> None:
        self.fingerprints: dict[str, str] = {}
        """What stands for the declarations of a class, by type name."""
        self.warned: set[str] = set()
        """What was said once: whose sub-agents' tasks are left aside, and which tasks cannot be used."""
        self.next_at = 0.0
        """When all agents are compared next (monotonic)."""
        self._tried: dict[Address, float] = {}

    def may_try(self, address: Address, now: float) -> bool:
        """True when an agent was not compared on its claim lately; it is from now on."""
        if now < self._tried.get(address, now - _TRY_SECONDS) + _TRY_SECONDS:
            return False
        if len(self._tried) >= _TRIED_AGENTS:
            self._tried.clear()
        self._tried[address] = now
        return True


class Runtime:
    """One process' connections, threads and identity.

    Args:
        settings: Of this process.
        publisher: Carries the bells into Celery.
        pool: Name of the Celery pool when this is a worker process, "producer" otherwise.
    """

    def __init__(self, settings: Settings, publisher: Publisher, *, pool: str = PRODUCER) -> None:
        self.settings = settings
        self.pool = pool
        self.worker_id: UUID = uuid4()
        self.draining = threading.Event()
        """Set when the process takes no further turns; running ones go on."""
        self.closing = threading.Event()
        """Set when the process gives up its connections."""
        self.consumed = threading.Event()
        """Set by every bell that is answered; the heartbeat reports and clears it."""
        self.view = View()
        self.database = Database(settings)
        self.announcer = Announcer(settings)
        self.dispatcher = Dispatcher(publisher, settings, self.announcer)
        self.loop = LoopThread(stall_seconds=settings.loop_stall_seconds)
        self.running = Running()
        self.desk = Desk()
        self.calls = Calls()
        self.responding = Responding()
        self.deliveries = Deliveries()
        self.arming = Arming()
        self.declared: set[str] = set()
        """Classes of which the ledger knows whether they override the status hook."""
        self._making = threading.Lock()
        self._streams: Streams | None = None
        self._ledger_pool: ThreadPoolExecutor | None = None

    @property
    def streams(self) -> Streams:
        """Frames and signals through Redis; made when first used."""
        with self._making:
            if self._streams is None:
                self._streams = Streams(self.settings, self.loop.loop)
            return self._streams

    @property
    def ledger_pool(self) -> ThreadPoolExecutor:
        """Threads for ledger calls out of coroutines; a bounded pool of their own."""
        with self._making:
            if self._ledger_pool is None:
                size = self.settings.database_pool_size
                self._ledger_pool = ThreadPoolExecutor(size, thread_name_prefix="think-ledger")
            return self._ledger_pool

    @property
    def worker(self) -> Worker:
        """How this process introduces itself in the ledger."""
        return Worker(
            worker_id=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            pool=self.pool,
            version=version("think-celery"),
            agent_types=registry.known(),
        )

    def ring_lane(self, address: Address) -> None:
        """Ring a bell that names the lane and no row; it has an id of its own and is never revoked."""
        self.dispatcher.nudge(address, None, task_id=str(uuid4()), announce=True)

    def close(self) -> None:
        """Release everything; calls that wait end with ProcessClosing."""
        self.draining.set()
        self.closing.set()
        self.loop.close(self._release())
        self.deliveries.close()
        if self._ledger_pool is not None:
            self._ledger_pool.shutdown(wait=False, cancel_futures=True)
        self.dispatcher.close()
        self.announcer.close()
        self.database.close()

    async def _release(self) -> None:
        """Close what belongs to the loop."""
        if self._streams is not None:
            await self._streams.aclose()
        await close_models()


async def in_ledger_pool(runtime: Runtime, call: Callable[[], T]) -> T:
    """Run a blocking ledger call from a coroutine, in the pool that is there for it."""
    return await asyncio.wrap_future(runtime.ledger_pool.submit(call))


_lock = threading.RLock()
_current: tuple[int, Runtime] | None = None
_publisher_factory: Callable[[Settings], Publisher] | None = None
_configured: Settings | None = None


def bind(publisher_factory: Callable[[Settings], Publisher], settings: Settings | None = None) -> None:
    """Say what carries this process' bells, and under which settings."""
    global _publisher_factory, _configured
    with _lock:
        _publisher_factory = publisher_factory
        _configured = settings or _configured


def use(runtime: Runtime) -> None:
    """Make a runtime the one that handles of this process use."""
    global _current
    with _lock:
        _current = (os.getpid(), runtime)


def default_runtime() -> Runtime:
    """Return the runtime of this process, made at the first call and again after a fork.

    Raises:
        StackNotRunning: Nothing says where the servers are.
        InvalidSettings: A setting cannot be used.
    """
    global _current
    with _lock:
        if _current is not None and _current[0] == os.getpid() and not _current[1].closing.is_set():
            return _current[1]
        settings = _configured or load_settings()
        assert _publisher_factory is not None, "think_celery/__init__.py binds it"
        _current = (os.getpid(), Runtime(settings, _publisher_factory(settings)))
        return _current[1]
