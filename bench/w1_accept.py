"""W1: how many jobs one producer hands in per second, with no worker running."""

import time
from collections.abc import Callable

from bench import produce
from bench.figure import Figures, percentiles
from bench.process import apart
from bench.produce import Producer
from bench.site import Site
from bench.workload import Column, Contender, Goal, Role, Workload

_KEYS = 50


def _measure(producer: Producer) -> Callable[[Site, int], Figures]:
    return lambda site, jobs: apart(_produce, site, jobs, producer)


def _produce(site: Site, jobs: int, producer: Producer) -> Figures:
    with producer(site) as submit:
        produce.warm_up(submit, _KEYS, _KEYS)
        begun = time.process_time()
        took = produce.submit_all(submit, jobs, _KEYS)
        busy = time.process_time() - begun
    return {
        "per_second": jobs / (sum(took) / 1000),
        **percentiles(took),
        "cpu_ms": busy * 1000 / jobs,
    }


WORKLOAD = Workload(
    key="w1",
    title="W1 accept: one producer, 50 agents, no workers",
    figure="per_second",
    unit="accepts/s",
    lower_is_better=False,
    jobs=(2000, 300),
    contenders=(
        Contender("think-celery submit_messages", Role.OURS, _measure(produce.ours)),
        Contender("INSERT+COMMIT, then apply_async", Role.FLOOR, _measure(produce.insert_then_celery)),
        Contender("raw Celery apply_async alone", Role.INFO, _measure(produce.raw_celery)),
    ),
    columns=(
        Column("p50", "p50 ms"),
        Column("p95", "p95 ms"),
        Column("p99", "p99 ms"),
        Column("cpu_ms", "producer's CPU ms each"),
    ),
    goals=(Goal("ratio", "accepts per second against the floor", at_least=0.9),),
)
