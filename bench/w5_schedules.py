"""W5: how long it takes to dispatch what is due at one moment, with a million schedules in the table."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import psycopg

from bench.figure import Figures
from bench.produce import runtime
from bench.site import SCHEMA, Site
from bench.workload import Column, Contender, Goal, Role, Workload
from think_celery import ScheduledTask, Think, Turn
from think_celery.core.address import Address
from think_celery.engine import arming, schedules
from think_celery.engine.runtime import Runtime

_DUE = 10_000
_PROBE = "probe"
_TASK = "report"
_COLUMNS = (
    "kind, schedule, timezone, action, overlap, missed, grace_seconds, "
    "schedule_hash, task_hash, tzdata_version"
)
_FILL = f"""
INSERT INTO {SCHEMA}.schedules (agent_type, agent_name, task_id, {_COLUMNS}, next_run_at, due_at)
SELECT agent_type, 'a' || n, task_id, {_COLUMNS}, at, at
FROM {SCHEMA}.schedules, generate_series(1, %(rows)s) n,
    LATERAL (SELECT now() + CASE WHEN n %% (%(rows)s / %(due)s) = 0 THEN interval '-1 second'
                    ELSE (n %% 86400 + 3600) * interval '1 second' END AS at) times
WHERE agent_name = '{_PROBE}'
"""
_FLOOR = f"""
INSERT INTO {SCHEMA}.schedules (agent_type, agent_name, task_id, {_COLUMNS}, next_run_at, due_at)
SELECT agent_type, 'a' || n, task_id, {_COLUMNS}, now() - interval '1 second', now() - interval '1 second'
FROM {SCHEMA}.schedules, generate_series(1, %(due)s) n WHERE agent_name = '{_PROBE}'
"""


class Scheduled(Think):
    """Has one task a day."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        """Yield one word."""
        yield "done"

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        """Return the task."""
        return {
            _TASK: ScheduledTask(schedule="every day at 09:00 in Europe/London", prompt="Write the report.")
        }


def _measure(site: Site, jobs: int) -> Figures:
    return _dispatch(site, _FILL, jobs, _due_of(jobs))


def _measure_few(site: Site, jobs: int) -> Figures:
    return _dispatch(site, _FLOOR, jobs, _due_of(jobs) // 5)


def _due_of(jobs: int) -> int:
    return min(_DUE, jobs // 20)


def _dispatch(site: Site, fill: str, rows: int, due: int) -> Figures:
    with runtime(site) as connected:
        connected.loop.run(arming.reconcile(connected, Address(Scheduled.type_name, _PROBE)))
        with psycopg.connect(site.database_url, autocommit=True) as connection:
            connection.execute(fill, {"rows": rows, "due": due})
            connection.execute(f"VACUUM ANALYZE {SCHEMA}.schedules")
            connection.execute("CHECKPOINT")
            seconds = _work_off(connected, due)
            counted = connection.execute(
                f"SELECT count(*), count(DISTINCT agent_name) FROM {SCHEMA}.submissions "
                "WHERE kind = 'schedule'"
            ).fetchone()
    assert counted is not None
    return {"seconds": seconds, "ms": 1000 * seconds / due, "violations": abs(2 * due - sum(counted))}


def _work_off(connected: Runtime, due: int) -> float:
    begun = time.perf_counter()
    submitted = 0
    while submitted < due:
        counts = schedules.dispatch(connected, seconds=60).counts
        submitted += counts["submitted"]
        if not counts:
            break
    return time.perf_counter() - begun


WORKLOAD = Workload(
    key="w5",
    title=f"W5 schedules: {_DUE:,} due at once among a million, next to a small table",
    figure="ms",
    unit="ms per due task",
    lower_is_better=True,
    jobs=(1_000_000, 10_000),
    contenders=(
        Contender("think-celery, a million schedules", Role.OURS, _measure),
        Contender("think-celery, a fifth of what is due and nothing else", Role.FLOOR, _measure_few),
    ),
    columns=(
        Column("seconds", "seconds for all"),
        Column("violations", "lost or doubled", 0),
    ),
    goals=(
        Goal("seconds", f"seconds for {_DUE:,} due schedules", at_most=60.0),
        Goal("violations", "lost or doubled", at_most=0),
    ),
    rounds=1,
)
