"""W4: whether listing and inspecting stay flat when one agent has a million submissions."""

import statistics
import time
from collections.abc import Callable

import psycopg

from bench.figure import Figures
from bench.produce import runtime
from bench.site import SCHEMA, Site
from bench.workload import Column, Contender, Goal, Role, Workload
from think_celery import AgentHandle

_TYPE, _NAME = "Noop", "archive"
_FEW = 1_000
_CALLS = 200
_FILL = f"""
INSERT INTO {SCHEMA}.submissions (agent_type, agent_name, submission_id, uid, request_id, kind, status,
    position, messages, body_hash, attempt, created_at, started_at, completed_at)
SELECT '{_TYPE}', '{_NAME}', 's' || n, gen_random_uuid(), 's' || n, 'submit',
    CASE WHEN n = 7 THEN 'error' ELSE 'completed' END, n, '[]', '', 1, t, t, t
FROM generate_series(1, %(rows)s) n,
    LATERAL (SELECT now() - (%(rows)s - n) * interval '1 second' AS t) times
"""


def _measure(site: Site, jobs: int) -> Figures:
    return _look(site, jobs)


def _measure_few(site: Site, _: int) -> Figures:
    return _look(site, _FEW)


def _look(site: Site, rows: int) -> Figures:
    with psycopg.connect(site.database_url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {SCHEMA}.agents (agent_type, agent_name, last_position, head_position) "
            f"VALUES ('{_TYPE}', '{_NAME}', %s, %s)",
            (rows, rows + 1),
        )
        connection.execute(_FILL, {"rows": rows})
        connection.execute(f"VACUUM ANALYZE {SCHEMA}.submissions")
    with runtime(site) as connected:
        agent = AgentHandle(_TYPE, _NAME, runtime=connected)
        return {
            "list_ms": _median(lambda number: agent.list_submissions()),
            "rare_ms": _median(lambda number: agent.list_submissions(status=["error", "aborted"])),
            "inspect_ms": _median(lambda number: agent.inspect_submission(f"s{1 + number * 97 % rows}")),
        }


def _median(call: Callable[[int], object]) -> float:
    took = []
    for number in range(_CALLS):
        begun = time.perf_counter()
        call(number)
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


WORKLOAD = Workload(
    key="w4",
    title=f"W4 look-ups: one agent with a million submissions, next to one with {_FEW:,}",
    figure="list_ms",
    unit="ms per list of 50",
    lower_is_better=True,
    jobs=(1_000_000, 20_000),
    contenders=(
        Contender("think-celery, a million rows", Role.OURS, _measure),
        Contender(f"think-celery, {_FEW:,} rows", Role.FLOOR, _measure_few),
    ),
    columns=(
        Column("rare_ms", "list of a rare status, ms"),
        Column("inspect_ms", "inspect, ms"),
    ),
    goals=(Goal("ratio", "a list among a million rows against a thousand", at_most=1.5),),
    rounds=1,
)
