"""W3: how long one job takes on an idle system, and the first turn of an agent that nobody has heard of."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import floor, produce, record
from bench.figure import Figures, percentiles
from bench.process import apart, workers
from bench.site import Site
from bench.workload import Column, Contender, Goal, Role, Workload
from think_celery import AgentHandle
from think_celery.core.submission import Submission
from think_celery.engine.runtime import Runtime

_KEYS = 50
_GAP_SECONDS = (0.005, 0.015)
_PATIENCE_SECONDS = 30.0
_FRESH_SHARE = 0.3
"""First turns of new agents, per ordinary job."""

Answered = Callable[[str, int], object]
"""Hand in one job and return when its end is known here."""


@dataclass(slots=True)
class Course:
    """Jobs one at a time, and when each was handed in and known to have ended."""

    submitted: dict[int, int] = field(default_factory=dict)
    took_ms: list[float] = field(default_factory=list)

    def run(self, answered: Answered, names: dict[int, str]) -> None:
        """Do the jobs, each a random moment after the one before, so that no poll keeps step with them."""
        gaps = random.Random(len(names))
        for number, name in names.items():
            time.sleep(gaps.uniform(*_GAP_SECONDS))
            begun = time.monotonic_ns()
            answered(name, number)
            self.took_ms.append((time.monotonic_ns() - begun) / 1e6)
            self.submitted[number] = begun

    def starts_ms(self, site: Site) -> list[float]:
        """Return the milliseconds from each submit to the start of its body."""
        bodies = [body for body in record.read(site.folder) if body.number in self.submitted]
        return [(body.started_ns - self.submitted[body.number]) / 1e6 for body in bodies]


def _ours(site: Site, jobs: int) -> Figures:
    with workers(site, "workers"):
        return apart(_produce_ours, site, jobs)


def _produce_ours(site: Site, jobs: int) -> Figures:
    seen: list[Submission] = []
    with produce.runtime(site) as runtime:

        def answered(name: str, number: int) -> None:
            seen.append(_turn(runtime, name, number))

        for number in range(_KEYS):
            answered(produce.key_of(number, _KEYS), -1 - number)
        known, fresh = Course(), Course()
        known.run(answered, {number: produce.key_of(number, _KEYS) for number in range(jobs)})
        seen.clear()
        fresh.run(answered, {jobs + number: f"new-{number}" for number in range(int(jobs * _FRESH_SHARE))})
    claims = [(row.started_at - row.created_at).total_seconds() * 1000 for row in seen if row.started_at]
    return {
        **percentiles(known.took_ms),
        **percentiles(known.starts_ms(site), "start_"),
        **percentiles(fresh.starts_ms(site), "fresh_start_"),
        **percentiles(claims, "fresh_claim_"),
        "fresh_jobs": len(claims),
    }


def _turn(runtime: Runtime, name: str, number: int) -> Submission:
    handle = AgentHandle(produce.AGENT, name, runtime=runtime)
    receipt = handle.submit_messages(f"{number} {produce.TEXT}")
    ended = handle.wait_for_submission(receipt.submission_id, _PATIENCE_SECONDS)
    if ended is None or ended.status != "completed":
        raise RuntimeError(f"turn {number} of {name} did not complete: {ended}")
    return ended


def _raw(site: Site, jobs: int) -> Figures:
    with workers(site, "bench.floor_app", "-P", "threads", "-c", "8"):
        return apart(_produce_raw, site, jobs)


def _produce_raw(site: Site, jobs: int) -> Figures:
    task = floor.task_of(floor.build(site.floor_broker, site.floor_backend), floor.ANSWER)

    def answered(key: str, number: int) -> None:
        task.apply_async((produce.body(key, number),)).get(timeout=_PATIENCE_SECONDS)

    for number in range(_KEYS):
        answered("warm-up", -1 - number)
    course = Course()
    course.run(answered, {number: produce.key_of(number, _KEYS) for number in range(jobs)})
    return {**percentiles(course.took_ms), **percentiles(course.starts_ms(site), "start_")}


WORKLOAD = Workload(
    key="w3",
    title="W3 latency on an idle system: one worker with 8 slots, one job at a time",
    figure="p50",
    unit="ms submit → end seen, p50",
    lower_is_better=True,
    jobs=(200, 40),
    contenders=(
        Contender("think-celery, wait_for_submission", Role.OURS, _ours),
        Contender("raw Celery, .get() on Redis", Role.FLOOR, _raw),
    ),
    columns=(
        Column("p95", "… p95"),
        Column("start_p50", "ms submit → body starts, p50"),
        Column("start_p95", "… p95"),
        Column("fresh_claim_p50", "new agent: ms accept → claim, p50"),
        Column("fresh_claim_p95", "… p95"),
        Column("fresh_start_p50", "new agent: ms submit → body, p50"),
        Column("fresh_start_p95", "… p95"),
    ),
    goals=(Goal("fresh_claim_p50", "ms to the first turn of a new agent, median", at_most=20),),
)
