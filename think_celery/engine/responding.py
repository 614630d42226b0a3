"""Which response hooks this process is calling now."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from think_celery.core.address import Address


@dataclass(slots=True)
class Due:
    """A turn of this process whose hook is due."""

    address: Address
    message: dict[str, Any] | None
    """As it was before it was shortened for the ledger."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """The hook was called, or is left to another process."""


class Responding:
    """One process' response hooks; used on the process loop, except where said."""

    def __init__(self) -> None:
        self.tasks: dict[Address, asyncio.Task[None]] = {}
        self.again: set[Address] = set()
        """Agents with a hook that became due after their task had looked."""
        self._due: dict[UUID, Due] = {}
        self._calling: dict[Address, bool] = {}
        """Agents whose hook is being called, and whether that has waited for an agent."""

    def __bool__(self) -> bool:
        """True while a hook is called; callable from any thread."""
        return bool(self.tasks)

    def expect(self, uid: UUID, due: Due) -> Due:
        """Note that a row's hook will be called here."""
        self._due[uid] = due
        return due

    def due(self, uid: UUID) -> Due | None:
        """Return what is known here of a row whose hook is due."""
        return self._due.get(uid)

    def done(self, uid: UUID) -> None:
        """Note that a row's hook was called."""
        if (due := self._due.pop(uid, None)) is not None:
            due.heard.set()

    @contextmanager
    def calling(self, address: Address) -> Iterator[None]:
        """Note that an agent's hook is called within the block."""
        self._calling[address] = False
        try:
            yield
        finally:
            del self._calling[address]

    def waits(self, address: Address) -> None:
        """Note that an agent's hook waits for an agent, maybe for one that waits for it."""
        if address in self._calling:
            self._calling[address] = True
            self.release(address)

    def release(self, address: Address) -> None:
        """Let nobody wait for an agent's hooks any more."""
        for due in self._due.values():
            if due.address == address:
                due.heard.set()

    async def heard(self, due: Due) -> None:
        """Wait until a hook was called, unless an agent's hook waits for others itself."""
        if not self._calling.get(due.address, False):
            await due.heard.wait()

    async def rest(self) -> None:
        """Wait until no hook is called."""
        while self.tasks:
            await asyncio.wait(self.tasks.values())

    def leave(self, address: Address) -> None:
        """Note that the rest of an agent's hooks is left to another process, or to the sweeper."""
        for uid in [uid for uid, due in self._due.items() if due.address == address]:
            self.done(uid)
