"""What the two kinds of handles offer on an agent's scheduled tasks; both derive from here."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from think_celery.core.address import Address
from think_celery.core.timetable import Degradation, Occurrence, ScheduleView
from think_celery.engine import arming, timetable
from think_celery.engine.runtime import Runtime

T = TypeVar("T")


class ScheduleNames:
    """The blocking names."""

    address: Address

    def _connected(self) -> Runtime:
        raise NotImplementedError

    def schedules(self) -> list[ScheduleView]:
        """Return the agent's scheduled tasks, the next one due first."""
        return timetable.listing(self._connected(), address=self.address)

    def occurrences(
        self, task: str | None = None, *, state: str | Iterable[str] | None = None, limit: int = 50
    ) -> list[Occurrence]:
        """Return what became of the tasks' due instants, the youngest first.

        Args:
            task: Only of this task.
            state: One state or several, such as `error`; None gives all.
            limit: Clamped to 1…1000.
        """
        return timetable.history(self._connected(), self.address, task=task, state=state, limit=limit)

    def run_schedule(self, task: str) -> Occurrence | None:
        """Have a task run once now, in a worker and beside its timetable; None without such a task.

        Raises:
            OccurrenceOpen: The task is a handler, which never runs twice at once, and an occurrence is open.
        """
        return timetable.run_now(self._connected(), self.address, task)

    def pause_schedule(self, task: str) -> bool | None:
        """Let a task not come due; False when it was paused already, None without such a task."""
        return timetable.pause(self._connected(), self.address, task, paused=True)

    def resume_schedule(self, task: str) -> bool | None:
        """Let a paused task go on with its next due instant; what was due meanwhile is left out.

        Returns:
            False when it was not paused, None without such a task.
        """
        return timetable.pause(self._connected(), self.address, task, paused=False)

    def reconcile_scheduled_tasks(self) -> list[ScheduleView]:
        """Read the declarations again, bring the stored tasks in line, and return them.

        For tasks that depend on data which changes while the agent lives. The agent's class must be loaded
        in this process.

        Raises:
            UnknownAgentType: It is not.
            Exception: What reading the declarations raised; nothing has changed.
        """
        runtime = self._connected()
        runtime.loop.run(arming.reconcile(runtime, self.address))
        return timetable.listing(runtime, address=self.address)

    def get_start_degradations(self) -> list[Degradation]:
        """Return what the agent's start could not do; it serves without."""
        return timetable.degradations(self._connected(), self.address)


class AsyncScheduleNames:
    """The awaitable names; arguments, results and errors are those of `ScheduleNames`."""

    address: Address

    @property
    def _runtime(self) -> Runtime:
        raise NotImplementedError

    async def _call(self, call: Callable[[], T]) -> T:
        raise NotImplementedError

    async def schedules(self) -> list[ScheduleView]:
        """Return the agent's scheduled tasks, the next one due first."""
        return await self._call(partial(timetable.listing, self._runtime, address=self.address))

    async def occurrences(
        self, task: str | None = None, *, state: str | Iterable[str] | None = None, limit: int = 50
    ) -> list[Occurrence]:
        """Return what became of the tasks' due instants; see `AgentHandle.occurrences`."""
        look = partial(timetable.history, self._runtime, self.address, task=task, state=state, limit=limit)
        return await self._call(look)

    async def run_schedule(self, task: str) -> Occurrence | None:
        """Have a task run once now; see `AgentHandle.run_schedule`."""
        return await self._call(partial(timetable.run_now, self._runtime, self.address, task))

    async def pause_schedule(self, task: str) -> bool | None:
        """Let a task not come due; see `AgentHandle.pause_schedule`."""
        return await self._call(partial(timetable.pause, self._runtime, self.address, task, paused=True))

    async def resume_schedule(self, task: str) -> bool | None:
        """Let a paused task go on; see `AgentHandle.resume_schedule`."""
        return await self._call(partial(timetable.pause, self._runtime, self.address, task, paused=False))

    async def reconcile_scheduled_tasks(self) -> list[ScheduleView]:
        """Read the declarations again; see `AgentHandle.reconcile_scheduled_tasks`."""
        await arming.reconcile(self._runtime, self.address)
        return await self.schedules()

    async def get_start_degradations(self) -> list[Degradation]:
        """Return what the agent's start could not do; it serves without."""
        return await self._call(partial(timetable.degradations, self._runtime, self.address))
