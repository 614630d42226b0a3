"""Find the turns that wait for each other in a circle; the youngest of them gives way.

A circle within one chain of calls is refused at once (`context.refuse_nesting`). One across unrelated chains,
a of A asking B while b of B asks A, shows only in the ledger, where waits are noted once they have lasted.
"""

import logging
import time
from uuid import uuid4

from think_celery.core.address import Address
from think_celery.engine.context import Here
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.errors import NestedTurnError, ServiceError
from think_celery.ledger import waits

log = logging.getLogger(__name__)
_FROM_SECONDS = 1.0
"""Most waits are over by then, and cost nothing."""


class Wait:
    """One turn's wait for another agent.

    Args:
        here: The turn that waits; None outside of any, where no circle can arise.
        address: The agent that it waits for.
    """

    def __init__(self, runtime: Runtime, here: Here | None, address: Address) -> None:
        self._runtime = runtime
        self._here = here
        self._address = address
        self._id = uuid4()
        self._next = time.monotonic() + _FROM_SECONDS
        self._noted = False

    async def go_on(self) -> None:
        """Do as `check`, and end the wait when its turn is stopped: it may be made in a thread of a tool.

        Raises:
            AbortError: The turn is being stopped.
            NestedTurnError: This wait closes a circle, and is the one to give way.
        """
        if self._here is not None:
            self._here.signal.throw_if_aborted()
        await self.check()

    async def check(self) -> None:
        """Look for a circle, if it is time to.

        Raises:
            NestedTurnError: This wait closes one, and is the one to give way.
        """
        here = self._here
        if here is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _FROM_SECONDS
        self._noted = True
        chain = await self._note(here)
        if chain:
            raise NestedTurnError(*chain, chain[0])

    async def _note(self, here: Here) -> list[str]:
        try:
            return await in_ledger_pool(
                self._runtime,
                lambda: waits.note(
                    self._runtime.database,
                    self._id,
                    uid=here.uid,
                    agent=here.address,
                    waits_for=self._address,
                ),
            )
        except ServiceError as error:
            log.warning("wait.not_noted agent=%s error=%s", here.address, error)
            return []

    async def close(self) -> None:
        """Forget the wait; what is left behind by a failure goes with the next sweep."""
        if self._noted:
            try:
                await in_ledger_pool(self._runtime, lambda: waits.end(self._runtime.database, self._id))
            except ServiceError as error:
                log.warning("wait.not_ended agent=%s error=%s", self._address, error)
