"""The promise: every accepted turn runs once, per agent in order of acceptance, never two at once."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests import agents
from tests.processes import worker
from think_celery import AgentHandle
from think_celery.engine.reading import survey
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually

TURNS, AGENTS = 300, 20


@dataclass(frozen=True, slots=True, order=True)
class Ran:
    """One line of the log that the agents write, apart from the ledger."""

    started: int
    ended: int
    agent: str
    text: str


def read(log: Path) -> list[Ran]:
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    return sorted(Ran(int(start), int(end), name, text) for name, text, start, end, _ in lines)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("scope", ["agent", "type"])
def test_300_turns_20_agents_2_workers(
    make_settings: Callable[..., Settings],
    produce: Callable[[Settings], Runtime],
    tmp_path: Path,
    pool: str,
    scope: str,
) -> None:
    settings = make_settings(queue_scope=scope, pool=pool, concurrency=4, agents=("tests.agents",))
    log = tmp_path / "turns.log"
    runtime = produce(settings)
    told = {agents.LOG_VARIABLE: str(log)}
    with worker(settings, tmp_path, name="w1", **told), worker(settings, tmp_path, name="w2", **told):
        accepted = defaultdict(list)
        for number in range(TURNS):
            handle = AgentHandle("Recorder", f"agent {number % AGENTS}", runtime=runtime)
            receipt = handle.submit_messages(str(number), metadata={"seconds": 0.002 * (number % 3)})
            accepted[handle.address.name].append(receipt)
        eventually(lambda: len(log.read_text().splitlines()) >= TURNS if log.exists() else False, timeout=90)
        eventually(lambda: not any(lane.pending or lane.running for lane in survey(runtime)), timeout=20)
    ran = read(log)
    assert len(ran) == TURNS
    assert len({turn.text for turn in ran}) == TURNS, "every turn once"
    for name, receipts in accepted.items():
        turns = [turn for turn in ran if turn.agent == name]
        assert [int(turn.text) for turn in turns] == sorted(int(turn.text) for turn in turns), "in order"
        for earlier, later in pairwise(turns):
            assert earlier.ended <= later.started, "never two at once"
        handle = AgentHandle("Recorder", name, runtime=runtime)
        rows = {row.submission_id: row for row in handle.list_submissions(limit=100)}
        assert all(rows[receipt.submission_id].status == "completed" for receipt in receipts)
        assert all(rows[receipt.submission_id].attempt == 1 for receipt in receipts)
