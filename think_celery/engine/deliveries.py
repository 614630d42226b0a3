"""What bounds a process' finish webhooks: how many at once, one look at the outbox at a time."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

LIMIT = 25
_RESOLVERS = 4


class Deliveries:
    """The state of one process' deliveries; all but `ask` is used on the process' loop only."""

    def __init__(self) -> None:
        self.looking = asyncio.Lock()
        """Held from the look at the free places to the end of the claim."""
        self.free = LIMIT
        """Places for further deliveries."""
        self.more = False
        """The last claim filled every place, so there may be more."""
        self.pool = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="think-webhook")
        """Resolves names, which nothing can cancel; apart from the threads that turns need."""
        self._lock = threading.Lock()
        self._asked = False

    def ask(self) -> bool:
        """Ask for a look at the outbox; False when one was asked for and has not begun."""
        with self._lock:
            new, self._asked = not self._asked, True
            return new

    def begin(self) -> None:
        """Say that a look begins: who asks from now on may have seen what it will not see."""
        with self._lock:
            self._asked = False

    def take(self, count: int) -> None:
        """Occupy places."""
        self.more = count == self.free
        self.free -= count

    def release(self) -> None:
        """Give one place back."""
        self.free += 1

    def close(self) -> None:
        """Resolve nothing more."""
        self.pool.shutdown(wait=False, cancel_futures=True)
