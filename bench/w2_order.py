"""W2 and W2b: ordered turns per second, over fifty agents and in one hot one.

The clock runs from the first submit to the end of the last body; the producer is at work beside the workers.
"""

import time
from collections.abc import Callable

import psycopg

from bench import produce, record
from bench.figure import Figures
from bench.process import apart, workers
from bench.produce import Producer, Submit
from bench.site import SCHEMA, Site
from bench.workload import Column, Contender, Goal, Role, Workload

_STALLED_SECONDS = 15.0
_POLL_SECONDS = 0.02
_SETTLED = f"SELECT count(*) FROM {SCHEMA}.submissions WHERE status = 'completed' AND attempt = 1"


def _ours(keys: int, processes: int) -> Callable[[Site, int], Figures]:
    def measure(site: Site, jobs: int) -> Figures:
        with workers(site, "workers", count=processes):
            return apart(_produce, site, jobs, keys, produce.ours, ledger=True)

    return measure


def _raw(keys: int, processes: int, *options: str) -> Callable[[Site, int], Figures]:
    def measure(site: Site, jobs: int) -> Figures:
        with workers(site, "bench.floor_app", *options, count=processes):
            return apart(_produce, site, jobs, keys, produce.raw_celery, ledger=False)

    return measure


def _produce(site: Site, jobs: int, keys: int, producer: Producer, *, ledger: bool) -> Figures:
    warm = max(keys, 20)
    with producer(site) as submit:
        produce.warm_up(submit, warm, keys)
        _await(lambda: record.count(site.folder), warm)
        begun = time.monotonic_ns()
        submits = _seconds(submit, jobs, keys)
        _await(lambda: record.count(site.folder), warm + jobs)
    missing = jobs + warm - _await(lambda: _settled(site), jobs + warm) if ledger else 0
    bodies = record.read(site.folder)
    if not bodies:
        raise RuntimeError(f"no job ran; see the logs of the workers in {site.folder}")
    found = {**record.violations(bodies), "missing": max(missing, jobs - len(bodies))}
    took = (max(body.ended_ns for body in bodies) - begun) / 1e9
    return {
        "per_second": len(bodies) / took,
        "submits": jobs / submits,
        "violations": sum(found.values()),
        **found,
    }


def _seconds(submit: Submit, jobs: int, keys: int) -> float:
    begun = time.perf_counter()
    produce.submit_all(submit, jobs, keys)
    return time.perf_counter() - begun


def _await(done: Callable[[], int], wanted: int) -> int:
    """Wait for so many, or until nothing happens any more, and return how many there are."""
    seen, since = -1, time.monotonic()
    while (now := done()) < wanted and time.monotonic() - since < _STALLED_SECONDS:
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(_POLL_SECONDS)
    return now


def _settled(site: Site) -> int:
    with psycopg.connect(site.database_url) as connection:
        row = connection.execute(_SETTLED).fetchone()
    return 0 if row is None else int(row[0])


_COLUMNS = (
    Column("submits", "submits/s", 0),
    Column("violations", "violations", 0),
    Column("disorders", "disorders", 0),
    Column("overlaps", "overlaps", 0),
)
_NO_VIOLATIONS = Goal("violations", "out of order, overlapping, repeated or missing turns", at_most=0)

WORKLOAD = Workload(
    key="w2",
    title="W2 ordered turns: 50 agents, 2 workers with 8 slots each",
    figure="per_second",
    unit="turns/s",
    lower_is_better=False,
    jobs=(2000, 300),
    contenders=(
        Contender("think-celery, threads", Role.OURS, _ours(50, 2)),
        Contender("raw Celery, threads, no order", Role.FLOOR, _raw(50, 2, "-P", "threads", "-c", "8")),
        Contender("think-celery, prefork", Role.INFO, _ours(50, 2), pool="prefork"),
    ),
    columns=_COLUMNS,
    goals=(_NO_VIOLATIONS,),
)

HOT = Workload(
    key="w2b",
    title="W2b one hot agent: 2 workers with 8 slots each; raw Celery needs one slot for the order",
    figure="per_second",
    unit="turns/s",
    lower_is_better=False,
    jobs=(500, 100),
    contenders=(
        Contender("think-celery, threads", Role.OURS, _ours(1, 2)),
        Contender("raw Celery, one queue, -c 1", Role.FLOOR, _raw(1, 1, "-c", "1")),
    ),
    columns=_COLUMNS,
    goals=(Goal("per_second", "turns per second of one agent", at_least=150), _NO_VIOLATIONS),
)
