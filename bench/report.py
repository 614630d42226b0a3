"""What a run prints and writes."""

import json
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import redis
from rich import box
from rich.console import Console
from rich.table import Table

from bench.figure import Figures
from bench.workload import Contender, Goal, Result, Role, Workload
from think_celery.dev.servers import Addresses

_PACKAGES = ("think-celery", "celery", "kombu", "redis", "psycopg", "sqlalchemy", "pydantic")


def machine(addresses: Addresses) -> dict[str, Any]:
    """Return what the figures depend on beside the code."""
    with psycopg.connect(addresses.database_url) as connection:
        postgres = connection.info.parameter_status("server_version")
        flush = connection.execute("SHOW fsync").fetchone()
        committed = connection.execute("SHOW synchronous_commit").fetchone()
    with redis.Redis.from_url(addresses.redis_url, decode_responses=True) as client:
        info, policy = client.info("server"), client.config_get("append*")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "postgres": {
            "version": postgres,
            "fsync": flush and flush[0],
            "synchronous_commit": committed and committed[0],
        },
        "valkey": {
            "version": info.get("valkey_version", info["redis_version"]),
            "appendonly": policy["appendonly"],
            "appendfsync": policy["appendfsync"],
        },
    }


def as_json(result: Result) -> dict[str, Any]:
    """Return one workload's object of the results file."""
    workload = result.workload
    return {
        "title": workload.title,
        "unit": workload.unit,
        "better": "lower" if workload.lower_is_better else "higher",
        "jobs": result.jobs,
        "ours": round(result.value(Role.OURS), 3),
        "floor": round(result.value(Role.FLOOR), 3),
        "ratio": round(result.ratio, 3),
        "spread": round(result.spread(Role.OURS), 3),
        "floor_spread": round(result.spread(Role.FLOOR), 3),
        "goals": [_goal(result, goal) for goal in workload.goals],
        "contenders": {
            contender.name: {
                "role": contender.role.value,
                **_rounded(result.of(contender)),
                "rounds": [_rounded(figures) for figures in result.rounds[contender.name]],
            }
            for contender in _measured(result)
        },
    }


def write(file: Path, about: dict[str, Any], results: list[Result]) -> None:
    """Write the results, whole or not at all."""
    text = {"about": about, **{result.workload.key: as_json(result) for result in results}}
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".tmp")
    new.write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n")
    new.replace(file)


def show(console: Console, result: Result) -> None:
    """Print one workload's table, contenders side by side, and whether its goals are met."""
    workload = result.workload
    shown = _measured(result)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(workload.key)
    for contender in shown:
        style = "bold" if contender.role is Role.OURS else None
        table.add_column(f"{contender.name} ({contender.role})", justify="right", style=style)
    for heading, cells in _lines(result, shown):
        table.add_row(heading, *cells)
    console.print(f"{workload.title}; {result.jobs} jobs", style="bold")
    console.print(table)
    for goal in workload.goals:
        console.print(_verdict(result, goal))
    console.print()


def progress(workload: Workload, contender: Contender, turn: str, figures: Figures, seconds: float) -> str:
    """Return the line that follows a measurement."""
    figure = (
        f"{figures[workload.figure]:.2f}" if workload.lower_is_better else f"{figures[workload.figure]:.0f}"
    )
    return f"{workload.key:4} {turn}  {contender.name:34} {figure:>8} {workload.unit}  ({seconds:.1f} s)"


def _measured(result: Result) -> list[Contender]:
    return [contender for contender in result.workload.contenders if result.rounds.get(contender.name)]


def _lines(result: Result, shown: list[Contender]) -> Iterator[tuple[str, list[str]]]:
    workload, floor = result.workload, result.value(Role.FLOOR)
    figures = [result.of(contender) for contender in shown]
    digits = 2 if workload.lower_is_better else 0
    yield workload.unit, [f"{one[workload.figure]:.{digits}f}" for one in figures]
    yield "× floor", [f"{one[workload.figure] / floor:.2f}" for one in figures]
    yield (
        "spread",
        ["once" if one.role is Role.INFO else f"{result.spread(one.role):.0%}" for one in shown],
    )
    for column in workload.columns:
        yield (
            column.heading,
            [f"{one[column.figure]:.{column.digits}f}" if column.figure in one else "–" for one in figures],
        )


def _goal(result: Result, goal: Goal) -> dict[str, Any]:
    value = result.reached(goal)
    return {
        "goal": goal.words,
        "at_least": goal.at_least,
        "at_most": goal.at_most,
        "value": round(value, 3),
        "met": goal.is_met(value),
    }


def _verdict(result: Result, goal: Goal) -> str:
    value = result.reached(goal)
    limit = f"≥ {goal.at_least:g}" if goal.at_least is not None else f"≤ {goal.at_most:g}"
    mark = "[green]met   [/]" if goal.is_met(value) else "[red]missed[/]"
    return f"  goal {mark}  {goal.words}: {value:.2f} ({limit})"


def _rounded(figures: Figures) -> Figures:
    return {name: round(value, 3) for name, value in figures.items()}
