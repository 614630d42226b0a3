"""An agent whose scheduled tasks a test declares, and what can be done with its schedules."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from tests.engine.stage import passed
from think_celery import AgentHandle, ScheduledTask, Think, Turn
from think_celery.core.address import Address
from think_celery.core.timetable import Occurrence, ScheduleView
from think_celery.engine import occurrence, schedules
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.ledger import occurrences
from think_celery.ledger.occurrences import OccurrenceRow, Slot

DAILY = "every day at 09:00 in UTC"


@dataclass
class Plan:
    """What a test declares for one agent, and what that agent told."""

    tasks: Any = field(default_factory=dict)
    zone: str | None = None
    failure: Exception | None = None
    """Raised instead of declaring anything."""
    errors: list[tuple[Exception, Any]] = field(default_factory=list)
    gate: Any = None
    """Turns wait for this event, when there is one."""


plans: dict[str, Plan] = defaultdict(Plan)
named: dict[str, Iterable[str] | None] = {}
"""What `scheduled_agents` of a class returns."""


class Timed(Think):
    """Declares what its test says."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        gate = plans[self.name].gate
        if gate is not None:
            await passed(gate)
        yield f"did {turn.text}"

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        plan = plans[self.name]
        if plan.failure is not None:
            raise plan.failure
        return plan.tasks

    async def get_default_timezone(self) -> str | None:
        return plans[self.name].zone

    @classmethod
    def scheduled_agents(cls) -> Iterable[str] | None:
        return named.get(cls.type_name)

    def on_schedule_error(self, error: Exception, occurrence: Any) -> None:
        plans[self.name].errors.append((error, occurrence))


class Everywhere(Timed):
    """Its sub-agents come due, too."""

    scheduled_tasks_scope = "all"


@dataclass
class Clockwork:
    """One process and one agent with scheduled tasks."""

    runtime: Runtime
    address: Address

    @property
    def handle(self) -> AgentHandle:
        return AgentHandle(self.address.type_name, self.address.name, runtime=self.runtime)

    @property
    def plan(self) -> Plan:
        return plans[self.address.name]

    def declare(self, **tasks: Any) -> list[ScheduleView]:
        """Declare tasks instead of those before, and have them compared."""
        self.plan.tasks = tasks
        return self.handle.reconcile_scheduled_tasks()

    def task(self, task: str = "report") -> ScheduleView:
        return {view.task_id: view for view in self.handle.schedules()}[task]

    def past(self, task: str | None = None) -> list[Occurrence]:
        """Occurrences, the oldest first."""
        return self.handle.occurrences(task, limit=1000)[::-1]

    def move(self, slot: datetime, task: str = "report") -> None:
        """Let a task be due at a time."""
        self.sql(
            "UPDATE {schema}.schedules SET next_run_at = :slot, due_at = :slot "
            "WHERE agent_name = :name AND task_id = :task",
            slot=slot, name=self.address.name, task=task,
        )  # fmt: skip

    def late(self, ago: timedelta = timedelta(seconds=1), task: str = "report") -> datetime:
        """Let a task be due since a while; returns since when, by the database's clock."""
        (slot,) = self.sql("SELECT date_trunc('second', now()) - cast(:ago AS interval)", ago=ago)[0]
        self.move(slot, task)
        return slot

    def dispatch(self, *, now: datetime | None = None, runtime: Runtime | None = None) -> dict[str, int]:
        return dict(schedules.dispatch(runtime or self.runtime, now=now).counts)

    def run(self, slot: Slot, runtime: Runtime | None = None) -> str:
        """Answer an occurrence's bell."""
        return occurrence.run(runtime or self.runtime, slot)

    def open(self) -> list[OccurrenceRow]:
        return occurrences.listing(
            self.runtime.database, self.address, task_id=None, states=["due", "running"], limit=100
        )

    def run_open(self) -> list[str]:
        """Answer the bells of all open occurrences."""
        return [self.run(row.slot) for row in self.open()]

    def drain(self) -> str:
        return drain(self.runtime, self.address)

    def texts(self) -> list[str]:
        """What was submitted, in order."""
        rows = self.sql(
            "SELECT messages FROM {schema}.submissions WHERE agent_name = :name ORDER BY position",
            name=self.address.name,
        )
        return [row.messages[0]["parts"][0]["text"] for row in rows]

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        def unit(connection: Any) -> list[Any]:
            result = connection.execute(text(self.runtime.database.sql(statement)), parameters)
            return list(result.all()) if result.returns_rows else []

        return self.runtime.database.run(unit)


def prompt(words: str | Callable[[], Any] = "write the report", **options: Any) -> ScheduledTask:
    """A task that sends a prompt."""
    return ScheduledTask(**{"schedule": DAILY, "prompt": words, **options})


def handler(action: Callable[[Any], Any], **options: Any) -> ScheduledTask:
    """A task that calls a function."""
    return ScheduledTask(**{"schedule": DAILY, "handler": action, **options})
