"""W6: how long a parent waits for a sub-agent that has nothing else to do, on a worker with one slot."""

import json
import time

from bench.figure import Figures, percentiles
from bench.process import apart, workers
from bench.produce import runtime
from bench.site import Site
from bench.workload import Column, Contender, Goal, Role, Workload
from think_celery import AgentHandle, message_text

_PATIENCE_SECONDS = 120.0
_WARM_UP = 20


def _ours(site: Site, jobs: int) -> Figures:
    with workers(site, "workers", "-c", "1"):
        return apart(_ask, site, jobs)


def _ask(site: Site, jobs: int) -> Figures:
    with runtime(site) as connected:
        parent = AgentHandle("Asking", "parent", runtime=connected)
        for count in (_WARM_UP, jobs):
            receipt = parent.submit_messages(f"{count}")
            ended = parent.wait_for_submission(receipt.submission_id, _PATIENCE_SECONDS)
            if ended is None or ended.status != "completed":
                raise RuntimeError(f"the parent's turn did not complete: {ended}")
        return percentiles(json.loads(message_text(parent.get_messages()[-1])))


def _submitted(site: Site, jobs: int) -> Figures:
    with workers(site, "workers", "-c", "1"):
        return apart(_submit, site, jobs)


def _submit(site: Site, jobs: int) -> Figures:
    took: list[float] = []
    with runtime(site) as connected:
        for number in range(_WARM_UP + jobs):
            child = AgentHandle("Idle", f"c{number % 10}", runtime=connected)
            began = time.perf_counter()
            child.wait_for_submission(child.submit_messages("x").submission_id, _PATIENCE_SECONDS)
            took.append(1000 * (time.perf_counter() - began))
    return percentiles(took[_WARM_UP:])


WORKLOAD = Workload(
    key="w6",
    title="W6 sub-agents: one worker with one slot, a parent's turn asks idle children one after the other",
    figure="p50",
    unit="ms question → answer, p50",
    lower_is_better=True,
    jobs=(300, 40),
    contenders=(
        Contender("think-celery, chat from the parent's turn", Role.OURS, _ours),
        Contender("the same child asked from a producer, submit and wait", Role.FLOOR, _submitted),
    ),
    columns=(Column("p95", "… p95"), Column("p99", "… p99")),
    goals=(Goal("p50", "ms to ask an idle sub-agent, median", at_most=15),),
)
