"""Read what an agent declares: its scheduled tasks, each by itself, so that a bad one harms no other."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from think_celery.agent import Think, registry
from think_celery.core import zone
from think_celery.core.address import Address
from think_celery.core.schedule import Schedule
from think_celery.core.task import TASK_ID_LIMIT, ScheduledTask, check_task, task_hash
from think_celery.core.wire import clean_text
from think_celery.engine import hooks
from think_celery.engine.making import agent_of
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidSchedule
from think_celery.ledger.schedules import Declared

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """A declared task that can be used."""

    task_id: str
    task: ScheduledTask
    schedule: Schedule
    declared: Declared


@dataclass(frozen=True, slots=True)
class Reading:
    """What an agent declares at the moment."""

    tasks: dict[str, Task] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    """Tasks that cannot be used, with the reason."""
    failure: Exception | None = None
    """Why the declarations could not be read at all."""

    @property
    def error(self) -> str | None:
        """The failure in words."""
        return None if self.failure is None else f"{type(self.failure).__name__}: {self.failure}"


def declares(kind: type[Think]) -> bool:
    """True when a class declares scheduled tasks."""
    return hooks.overrides(kind, "get_scheduled_tasks")


async def read(runtime: Runtime, address: Address) -> Reading:
    """Read what an agent declares; never raises what its class raises."""
    try:
        async with asyncio.timeout(runtime.settings.hook_seconds):
            kind = registry.get(address.type_name)
            names = await scheduled_names(kind) if declares(kind) else []
            if names is not None and address.name not in names:
                return Reading()
            return await read_agent(agent_of(runtime, address))
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        return Reading(failure=error)


async def read_all(runtime: Runtime, addresses: Iterable[Address]) -> dict[Address, Reading]:
    """Read what several agents declare."""
    return {address: await read(runtime, address) for address in addresses}


async def read_agent(agent: Think) -> Reading:
    """Read what an agent object declares."""
    try:
        default = None
        if hooks.overrides(type(agent), "get_default_timezone"):
            default = await hooks.call(agent.get_default_timezone)
            default = zone.find_zone(default) if default else None
        found = await hooks.call(agent.get_scheduled_tasks)
        if not isinstance(found, Mapping):
            raise TypeError(f"get_scheduled_tasks returned a {type(found).__name__}, not a mapping of tasks")
    except Exception as error:  # noqa: BLE001 - as above
        return Reading(failure=error)
    reading = Reading()
    for task_id, task in found.items():
        try:
            reading.tasks[task_id] = _task(task_id, task, default)
        except InvalidSchedule as error:
            reading.bad[clean_text(str(task_id))[:TASK_ID_LIMIT]] = f"{error.code}: {error}"
    return reading


async def scheduled_names(kind: type[Think]) -> list[str] | None:
    """Return the names of a class' agents that have tasks, None for all of them."""
    if kind.scheduled_agents.__func__ is Think.scheduled_agents.__func__:  # type: ignore[attr-defined]
        return None
    names = await hooks.call(kind.scheduled_agents)
    return None if names is None else list(dict.fromkeys(names))


def _task(task_id: str, task: ScheduledTask, default: str | None) -> Task:
    schedule = check_task(task_id, task, default_timezone=default)
    declared = Declared(
        kind=str(schedule.kind),
        schedule=schedule.normalized,
        timezone=schedule.timezone,
        action=task.action,
        # Handlers never run twice at once, whatever is wished.
        overlap="hold" if task.action == "handler" and task.overlap == "queue" else task.overlap,
        missed=task.missed,
        grace_seconds=float(task.misfire_grace_seconds),
        schedule_hash=schedule.hash,
        task_hash=task_hash(task, schedule),
        tzdata_version=zone.VERSION,
    )
    return Task(task_id, task, schedule, declared)
