"""`schedules`: what is due when, and `run`, `pause`, `resume`, `history`, `check` below it."""

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from think_celery.agent import registry
from think_celery.cli.context import Json, command, connect, group
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import complain, duration, print_json, status_text, table, until, write
from think_celery.core.address import Address, check_type_name
from think_celery.core.timetable import Occurrence, ScheduleStatus, ScheduleView
from think_celery.core.zone import load_zone, local_reading
from think_celery.dev.agents import AGENTS_FILE, DEMO_AGENTS, choose_agents
from think_celery.engine import declaring, timetable
from think_celery.engine.schedules import go_on
from think_celery.errors import InvalidInput
from think_celery.ledger import ticks

PANEL = "Schedules"
_STYLES = {"active": "green", "paused": "yellow", "invalid": "red"}
Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's id, as declared.")]
Agent = Annotated[
    str | None,
    typer.Argument(metavar="[AGENT]", help="Whose: Type/name. Not needed while only one agent has the task."),
]


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    below = group(app, "schedules", panel=PANEL, alone=schedules)
    command(below, "run", panel=PANEL)(run)
    command(below, "pause", panel=PANEL)(pause)
    command(below, "resume", panel=PANEL)(resume)
    command(below, "history", panel=PANEL)(history)
    command(below, "check", panel=PANEL)(check)
    command(below, "confirm", panel=PANEL)(confirm)


def schedules(
    of: Annotated[
        str | None,
        typer.Option("--of", metavar="AGENT|CLASS", help="Only of one agent (TaskAgent/alice) or class."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show so many at most.")] = 100,
    as_json: Json = False,
) -> ExitCode | None:
    """Show scheduled tasks: what cannot be used first, then the next one due."""
    runtime = connect()
    if of is None:
        views = timetable.listing(runtime, limit=limit)
    elif "/" in of:
        views = timetable.listing(runtime, address=Address.parse(of), limit=limit)
    else:
        views = timetable.listing(runtime, type_name=check_type_name(of), limit=limit)
    if as_json:
        print_json([view.to_json() for view in views])
        return None
    columns = ("task", "agent", "schedule", "zone", "next run (UTC)", "local", "last run", "policy", "status")
    empty = "No agent has scheduled tasks yet." if of is None else f"{of} has no scheduled tasks."
    table(columns, [_line(view) for view in views], empty=empty, upright=True)
    if ticks.HALTED in ticks.ticked(runtime.database):
        complain(
            "nothing comes due, the ledger seems to be a restored backup; `think-celery schedules confirm -h`"
        )
    return None


def run(task: Task, agent: Agent = None, as_json: Json = False) -> ExitCode | None:
    """Have a task run once now, in a worker; its timetable stays as it is."""
    address = _whose(task, agent)
    if address is None:
        return ExitCode.NOT_FOUND
    made = timetable.run_now(connect(), address, task)
    if made is None:
        return _unknown(task, address)
    if as_json:
        print_json(made.to_json())
    else:
        write(f"{task} of {address} is due now: think-celery schedules history {task} {address}\n")
    return None


def pause(task: Task, agent: Agent = None, as_json: Json = False) -> ExitCode | None:
    """Let a task not come due; it stays paused when its declaration changes."""
    return _switch(task, agent, paused=True, as_json=as_json)


def resume(task: Task, agent: Agent = None, as_json: Json = False) -> ExitCode | None:
    """Let a paused task go on with its next due time; what was due meanwhile is left out."""
    return _switch(task, agent, paused=False, as_json=as_json)


def history(
    task: Task,
    agent: Agent = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only those in this state; may be given again.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show so many at most.")] = 20,
    as_json: Json = False,
) -> ExitCode | None:
    """Show what became of a task's due times, the youngest first."""
    runtime, address = connect(), _whose(task, agent)
    if address is None:
        return ExitCode.NOT_FOUND
    found = timetable.history(runtime, address, task=task, state=state, limit=limit)
    if not found and not timetable.listing(runtime, address=address, task_id=task):
        return _unknown(task, address)
    if as_json:
        print_json([occurrence.to_json() for occurrence in found])
        return None
    columns = ("due (UTC)", "state", "late", "missed", "runs", "submission", "note")
    empty = f"{task} of {address} has not been due yet{' with such an end' if state else ''}."
    table(columns, [_past(each) for each in found], empty=empty, upright=True)
    return None


def confirm(as_json: Json = False) -> ExitCode | None:
    """Let schedules go on after the ledger was restored from a backup; what is overdue follows its policy.

    What ran after the backup was made is forgotten and may run again. Pause first what must not.
    """
    went_on = go_on(connect())
    if as_json:
        print_json({"confirmed": went_on})
    else:
        write("schedules go on\n" if went_on else "nothing to confirm: schedules go on as before\n")
    return None if went_on else ExitCode.NEGATIVE


def check(
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODULE]...", help="Agent modules; default those of THINK_AGENTS, else agents.py."
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Agents whose tasks depend on their name: the name to try.")
    ] = "default",
    as_json: Json = False,
) -> ExitCode | None:
    """Check what the agent classes declare, without any server; exit status 1 if a task cannot be used."""
    named = modules or choose_agents(os.environ, Path.cwd())[0]
    if not modules and named == (DEMO_AGENTS,) and not os.environ.get("THINK_AGENTS"):
        raise InvalidInput(
            "modules", f"name those of your agents, or set THINK_AGENTS: no {AGENTS_FILE} here"
        )
    sys.path.insert(0, os.getcwd())
    registry.load(named)
    checked = [row for each in registry.known() for row in _checked(each, name)]
    if as_json:
        print_json(checked)
    else:
        lines = [
            (row["taskId"], row["class"], row["schedule"], row["zone"], _verdict(row)) for row in checked
        ]
        table(
            ("task", "class", "schedule", "zone", "verdict"),
            lines,
            empty="No class declares tasks.",
            upright=True,
        )
    return ExitCode.NEGATIVE if any(row["fault"] for row in checked) else None


def _checked(type_name: str, name: str) -> list[dict[str, Any]]:
    kind = registry.get(type_name)
    if not declaring.declares(kind):
        return []
    reading = asyncio.run(declaring.read_agent(kind(Address(type_name, name))))

    def row(task: str, *, schedule: str = "", zone: str | None = None, fault: str | None) -> dict[str, Any]:
        return {"taskId": task, "class": type_name, "schedule": schedule, "zone": zone or "", "fault": fault}

    if reading.error is not None:
        return [row("", fault=reading.error)]
    good = [
        row(task_id, schedule=task.declared.schedule, zone=task.declared.timezone, fault=None)
        for task_id, task in sorted(reading.tasks.items())
    ]
    return good + [row(task_id, fault=fault) for task_id, fault in sorted(reading.bad.items())]


def _verdict(row: dict[str, Any]) -> Text:
    return Text("ok", style="green") if row["fault"] is None else Text(row["fault"], style="red")


def _switch(task: str, agent: str | None, *, paused: bool, as_json: bool) -> ExitCode | None:
    address = _whose(task, agent)
    if address is None:
        return ExitCode.NOT_FOUND
    changed = timetable.pause(connect(), address, task, paused=paused)
    if changed is None:
        return _unknown(task, address)
    if as_json:
        print_json({"agent": str(address), "taskId": task, "paused": paused, "changed": changed})
    elif changed:
        write(f"{'paused' if paused else 'resumed'} {task} of {address}\n")
    else:
        write(f"{task} of {address} {'is paused already' if paused else 'was not paused'}\n")
    return None


def _whose(task: str, agent: str | None) -> Address | None:
    if agent is not None:
        return Address.parse(agent)
    having = timetable.listing(connect(), task_id=task, limit=4)
    if not having:
        complain(f"no agent has a scheduled task {task!r}; `think-celery schedules` shows them")
        return None
    if len(having) > 1:
        names = ", ".join(view.agent for view in having[:3]) + (", …" if len(having) > 3 else "")
        raise InvalidInput("agent", f"several agents have a task {task!r} ({names}); name one")
    return Address.parse(having[0].agent)


def _unknown(task: str, address: Address) -> ExitCode:
    for view in timetable.listing(connect(), address=address, task_id=task):
        complain(f"{task} of {address} cannot run: {view.reason}")
        return ExitCode.NEGATIVE
    complain(f"{address} has no scheduled task {task!r}; `think-celery schedules` shows them")
    return ExitCode.NOT_FOUND


def _line(view: ScheduleView) -> tuple[Any, ...]:
    status = Text(view.status, style=_STYLES[view.status])
    if view.reason is not None:
        status = Text(f"invalid: {view.reason}", style="red")
    return (
        view.task_id,
        view.agent,
        view.schedule or "",
        view.timezone or "",
        _next(view),
        _there(view),
        _last(view),
        "" if view.overlap is None else f"{view.overlap}, {view.missed}",
        status,
    )


def _next(view: ScheduleView) -> str:
    if view.next_run_at is None or view.status is not ScheduleStatus.ACTIVE:
        return ""
    left = until(view.next_run_at)
    return f"{_utc(view.next_run_at)} {f'in {left}' if left else 'due'}"


def _there(view: ScheduleView) -> str:
    if view.next_run_at is None or view.timezone is None or view.status is not ScheduleStatus.ACTIVE:
        return ""
    return f"{local_reading(view.next_run_at, load_zone(view.timezone)):%a %H:%M}"


def _last(view: ScheduleView) -> Text:
    last = view.last
    if last is None:
        return Text("")
    what = last.submission_status if last.submission_status is not None else str(last.state)
    shown = Text(f"{_utc(last.scheduled_for)} ")
    shown.append_text(status_text(what))
    if last.submission_id is not None:
        shown.append(f" {last.submission_id}")
    return shown


def _past(each: Occurrence) -> tuple[Any, ...]:
    return (
        _utc(each.scheduled_for) + (" by hand" if each.manual else ""),
        str(each.state),
        duration(each.late_by_ms / 1000) if each.late_by_ms >= 1000 else "",
        each.missed_count or "",
        each.attempts or "",
        each.submission_id or "",
        each.error or each.submission_status or "",
    )


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"
