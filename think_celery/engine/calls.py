"""Turns that a caller in this process waits for and that this process runs itself.

Such a row names this process as its runner. A thread of its own works off the agent's lane until the row has
ended, so no slot of the pool is awaited, and a pool full of parents cannot block its children. Whichever
drain of this process comes to the row finds its call here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID
from weakref import WeakValueDictionary

from think_celery.abort import AbortController
from think_celery.core.address import Address
from think_celery.engine.context import Here
from think_celery.errors import TurnSetupError
from think_celery.ledger.rows import Row

log = logging.getLogger(__name__)
Method = Literal["event", "done", "error"]
"""A method of the caller's callback."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Supply:
    """Makes a turn's messages in view of the conversation, when the turn starts."""

    make: Callable[[Messages], Any]
    inside: Context = field(default_factory=copy_context)
    """What its caller runs inside of."""


@dataclass(slots=True)
class Item:
    """Something that a caller is to hear, and whether it has."""

    kind: Method
    text: str
    heard: "asyncio.Future[None]"

    def answer(self, error: Exception | None = None) -> None:
        """Let the turn go on, or fail with what the caller's method raised."""
        if self.heard.done():
            return
        if error is None:
            self.heard.set_result(None)
        else:
            self.heard.set_exception(error)


class Relay:
    """From a turn to its caller, one item at a time; used on the process loop."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()
        self._current: Item | None = None
        self._closed = False

    async def deliver(self, kind: Method, text: str = "") -> None:
        """Hand an item over and wait until the caller has dealt with it; raises what the caller raised."""
        if self._closed:
            return
        item = Item(kind, text, asyncio.get_running_loop().create_future())
        self._items.put_nowait(item)
        await item.heard

    async def take(self) -> Item | None:
        """Return the next item, None after the last."""
        self._current = None if self._closed else await self._items.get()
        return self._current

    def close(self) -> None:
        """End it from either side: nobody waits for the other any more."""
        self._closed = True
        if self._current is not None:
            self._current.answer()
        while not self._items.empty():
            if (item := self._items.get_nowait()) is not None:
                item.answer()
        self._items.put_nowait(None)


@dataclass(slots=True)
class Call:
    """One turn that somebody in this process waits for."""

    address: Address
    uid: UUID
    caller: Here | None = None
    """The turn that asks for it."""
    supply: Supply | None = None
    relay: Relay = field(default_factory=Relay)
    listens: bool = False
    """The caller wants to hear what is said."""
    runs_here: bool = False
    """A drain of this process runs it, and will say how it ended."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Something has happened that may have ended it."""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """The caller knows of a good end; the response hook may be called."""
    row: Row | None = None
    """The row in its terminal state; None while there is none, and for a deleted one."""
    message: dict[str, Any] | None = None
    failure: Exception | None = None
    """What the caller is to see raised; one that listens is told of a failed set-up instead."""

    @property
    def raises(self) -> Exception | None:
        """What a caller that listens is to see raised; it hears of no end then."""
        return None if isinstance(self.failure, TurnSetupError) else self.failure

    def finish(self, row: Row | None) -> None:
        """Say that the turn has ended, once; on the process loop."""
        if not self.over.is_set():
            self.row = row
            self.over.set()
            self.stirred.set()
            self.told.set()
            self.relay.close()


class Calls:
    """The calls of one process; callable from any thread."""

    def __init__(self) -> None:
        self._calls: dict[UUID, Call] = {}
        self._open: dict[str, tuple[Address, AbortController]] = {}
        self._placing: WeakValueDictionary[Address, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def open(self, address: Address, request_id: str) -> Iterator[AbortController]:
        """Make a call known for the length of the block: its caller can cancel it before its row exists."""
        stop = AbortController()
        self._open[request_id] = address, stop
        try:
            yield stop
        finally:
            del self._open[request_id]

    def abort(self, address: Address, request_id: str | None, reason: object) -> None:
        """Stop an agent's open call of that name, or all of them."""
        for name, (asked, stop) in list(self._open.items()):
            if asked == address and request_id in {None, name}:
                stop.abort(reason)

    @asynccontextmanager
    async def in_order(self, address: Address, *, patience: float) -> AsyncIterator[None]:
        """Let an agent's calls into its lane one by one, in the order in which they were made.

        Args:
            patience: Seconds to wait for those before; then the ledger is away, and order counts for little.
        """
        lock = self._placing.setdefault(address, asyncio.Lock())
        is_first = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    is_first = await lock.acquire()
            yield
        finally:
            if is_first:
                lock.release()

    def add(self, call: Call) -> None:
        """Make a call known; before its row is, because a drain may come to it at once."""
        self._calls[call.uid] = call

    def get(self, uid: UUID) -> Call | None:
        """Return the call of a row, None when nobody here waits for it."""
        return self._calls.get(uid)

    def begin(self, uid: UUID) -> Call | None:
        """Return the call of a row that a drain of this process runs now."""
        if (call := self._calls.get(uid)) is not None:
            call.runs_here = True
        return call

    def lose(self, uid: UUID) -> None:
        """Note that this process lost the row's lane and will not say how it ended."""
        if (call := self._calls.get(uid)) is not None:
            call.runs_here = False

    def drop(self, call: Call) -> None:
        """Forget a call."""
        self._calls.pop(call.uid, None)

    def __len__(self) -> int:
        return len(self._calls) + len(self._open)
