"""Bring agents' stored schedules in line with what their classes declare (C 2.2, 2.3).

An agent is compared when a process first claims its lane, when somebody asks for it, and when the
declarations of its class have changed since it was compared last. That is known by a fingerprint of the
class, kept with the agent, so that a restart rewrites nothing.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from types import CodeType

from think_celery.agent import Think, registry
from think_celery.core.address import Address
from think_celery.core.schedule import digest
from think_celery.engine import declaring, lining
from think_celery.engine.declaring import Reading
from think_celery.engine.making import agent_of
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.errors import ServiceError, ThinkError
from think_celery.ledger import declarations, schedules
from think_celery.ledger.declarations import Armed, Plan
from think_celery.ledger.schedules import ScheduleRow

log = logging.getLogger(__name__)
PROBE = "default"
"""The agent that a class gets which has none, and by which its declarations are recognised."""
_BATCH = 200
_TRIES = 3
_MARGIN_SECONDS = 10.0


def arm_classes(runtime: Runtime, *, at_once: bool = False) -> int:
    """Compare the agents of this process' classes with their declarations; returns how many.

    Does nothing when this process did that less than `reconcile_seconds` ago, unless it shall be at once.

    Raises:
        LedgerUnavailable: PostgreSQL is away.
    """
    now = time.monotonic()
    if now < runtime.arming.next_at and not at_once:
        return 0
    count = sum(_arm_class(runtime, registry.get(name)) for name in registry.known())
    runtime.arming.next_at = now + runtime.settings.reconcile_seconds
    return count


def wake(runtime: Runtime, address: Address, armed: str | None) -> None:
    """An agent was claimed: compare it beside its turn, if it was last compared with other declarations."""
    if not declaring.declares(registry.get(address.type_name)):
        return
    is_known = armed is not None and armed == runtime.arming.fingerprints.get(address.type_name)
    if not is_known and runtime.arming.may_try(address, time.monotonic()):
        runtime.loop.send_off(_wake(runtime, address, armed))


async def reconcile(runtime: Runtime, address: Address) -> None:
    """Compare one agent now.

    Raises:
        UnknownAgentType: Its class is not loaded in this process.
        Exception: What reading its declarations raised; nothing has changed.
    """
    kind = registry.get(address.type_name)
    reading = await declaring.read(runtime, address)
    if reading.failure is not None:
        raise reading.failure
    armed = await in_ledger_pool(
        runtime, partial(_write, runtime, kind, {address.name: reading}, fingerprint=None)
    )
    if armed.newer:
        log.warning("schedules.newer agent=%s build=%d", address, runtime.settings.build_number)


def bring_in_line(runtime: Runtime, address: Address, reading: Reading) -> Armed:
    """Write what an agent declares, of whom a due task is not as it is stored."""
    kind = registry.get(address.type_name)
    return _write(runtime, kind, {address.name: reading}, fingerprint=None)


async def _wake(runtime: Runtime, address: Address, armed: str | None) -> None:
    kind = registry.get(address.type_name)
    try:
        fingerprint = runtime.arming.fingerprints.get(kind.type_name) or await _fingerprint(runtime, kind)
        if fingerprint == armed:
            return
        readings = {address.name: await declaring.read(runtime, address)}
        write = partial(_write, runtime, kind, readings, fingerprint=fingerprint)
        await in_ledger_pool(runtime, write)
    except ThinkError as error:
        log.warning("schedules.not_compared agent=%s error=%s", address, error)


def _arm_class(runtime: Runtime, kind: type[Think]) -> int:
    try:
        names = runtime.loop.run(_names(kind))
        fingerprint = runtime.loop.run(_fingerprint(runtime, kind))
    except ServiceError:
        raise
    except Exception:  # a user's class may raise anything
        log.exception("schedules.not_compared class=%s", kind.type_name)
        return 0
    every = timedelta(seconds=max(0.0, runtime.settings.reconcile_seconds - _MARGIN_SECONDS))
    if not declarations.begin_arming(runtime.database, kind.type_name, declared=fingerprint, every=every):
        return 0
    count = 0
    for batch in _batches(runtime, kind, names, fingerprint):
        addresses = [Address(kind.type_name, name) for name in batch]
        found = runtime.loop.run(declaring.read_all(runtime, addresses))
        readings = {address.name: reading for address, reading in found.items()}
        _write(runtime, kind, readings, fingerprint=fingerprint)
        count += len(batch)
        if runtime.draining.is_set():
            break
    return count


async def _names(kind: type[Think]) -> list[str] | None:
    return await declaring.scheduled_names(kind) if declaring.declares(kind) else []


def _batches(
    runtime: Runtime, kind: type[Think], names: list[str] | None, fingerprint: str
) -> Iterator[list[str]]:
    database, type_name = runtime.database, kind.type_name
    if names is None:
        if not declarations.has_agents(database, type_name):
            yield [PROBE]
        find = partial(
            declarations.unarmed, armed=fingerprint, children_too=kind.scheduled_tasks_scope == "all"
        )
    else:
        for start in range(0, len(names), _BATCH):
            yield names[start : start + _BATCH]
        find = partial(declarations.scheduled_names)  # those that were named once
    after: str | None = ""
    while after is not None:
        found = find(database, type_name, after=after, limit=_BATCH)
        after = found[-1] if found else None
        yield [name for name in found if name not in set(names or ())]


def _write(
    runtime: Runtime, kind: type[Think], readings: dict[str, Reading], *, fingerprint: str | None
) -> Armed:
    """Compare what agents declare with what is stored, and write the difference."""
    left = _without_children(runtime, kind, readings)
    done = Armed()
    for _ in range(_TRIES):
        now, stored = schedules.of_agents(runtime.database, kind.type_name, list(left))
        plans = [_plan(reading, stored[name], name, fingerprint, now) for name, reading in left.items()]
        _warn(runtime, kind, plans)
        done = declarations.arm(runtime.database, kind.type_name, plans, build=runtime.settings.build_number)
        left = {name: reading for name, reading in left.items() if name in done.raced}
        if not left:
            break
    return done


def _plan(
    reading: Reading, rows: Sequence[ScheduleRow], name: str, fingerprint: str | None, now: datetime
) -> Plan:
    if reading.error is not None:
        log.warning("schedules.unreadable agent=%s error=%s", name, reading.error)
        return Plan(name, degraded=reading.error)
    return Plan(name, lining.changes(reading, rows, now=now), armed=fingerprint)


def _warn(runtime: Runtime, kind: type[Think], plans: Sequence[Plan]) -> None:
    """Tell once of each task that cannot be used: all agents of a class may have it."""
    for plan in plans:
        for change in plan.changes:
            what = f"{kind.type_name} {change.task_id}"
            if change.change == "bad" and what not in runtime.arming.warned:
                runtime.arming.warned.add(what)
                log.warning(
                    "schedules.invalid agent=%s/%s task=%s: %s",
                    kind.type_name,
                    plan.name,
                    change.task_id,
                    change.reason,
                )


def _without_children(
    runtime: Runtime, kind: type[Think], readings: dict[str, Reading]
) -> dict[str, Reading]:
    if kind.scheduled_tasks_scope == "all":
        return readings
    children = declarations.children(runtime.database, kind.type_name, list(readings))
    ignored = [name for name in children if readings[name].tasks]
    if ignored and kind.type_name not in runtime.arming.warned:
        runtime.arming.warned.add(kind.type_name)
        log.warning(
            "schedules.ignored class=%s agent=%s: it belongs to another agent, so its tasks do not come due; "
            'set scheduled_tasks_scope = "all" if they shall',
            kind.type_name,
            ignored[0],
        )
    return {name: Reading() if name in children else reading for name, reading in readings.items()}


async def _fingerprint(runtime: Runtime, kind: type[Think]) -> str:
    """Return what stands for the declarations of a class: its probe's tasks, and the code that names them."""
    codes = [getattr(getattr(kind, name), "__code__", None) for name in _METHODS]
    told: list[object] = [
        kind.scheduled_tasks_scope,
        *(None if code is None else _code(code) for code in codes),
    ]
    if declaring.declares(kind):
        names = await declaring.scheduled_names(kind)
        reading = await declaring.read_agent(agent_of(runtime, Address(kind.type_name, PROBE)))
        tasks = {task_id: asdict(task.declared) for task_id, task in reading.tasks.items()}
        told += [names, tasks, reading.bad]
    runtime.arming.fingerprints[kind.type_name] = digest(told)
    return runtime.arming.fingerprints[kind.type_name]


_METHODS = ("get_scheduled_tasks", "get_default_timezone", "scheduled_agents")


def _code(code: CodeType) -> list[object]:
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]
