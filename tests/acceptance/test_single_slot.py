"""Turns that wait for turns on real workers with one slot each, in every pool; and what a crash leaves."""

import itertools
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.family_agents import FOLDER, ONLY, Plan
from tests.processes import Process, alive, worker
from think_celery import AgentHandle, message_text
from think_celery.core.submission import Kind, Status, Submission
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually

PATIENCE_SECONDS = 30.0
WAYS = ("chat", "save", "wait", "stream", "stable")


@dataclass(frozen=True, slots=True)
class Site:
    """The producer and where the workers' gates are."""

    settings: Settings
    runtime: Runtime
    folder: Path

    def agent(self, type_name: str, name: str) -> AgentHandle:
        return AgentHandle(type_name, name, runtime=self.runtime)

    def submit(self, type_name: str, name: str, plan: Plan, **options: Any) -> str:
        return self.agent(type_name, name).submit_messages(json.dumps(plan), **options).submission_id

    def ended(self, type_name: str, name: str, submission_id: str) -> Submission:
        agent = self.agent(type_name, name)
        row = agent.wait_for_submission(submission_id, timeout=PATIENCE_SECONDS)
        assert row is not None
        assert row.is_terminal, row
        return row

    def turns(self, type_name: str, name: str) -> list[Submission]:
        """Return all turns of an agent, the youngest first."""
        return self.agent(type_name, name).list_submissions(kind=list(Kind))

    def said(self, type_name: str, name: str) -> str:
        return message_text(self.agent(type_name, name).get_messages()[-1])

    def worker(self, *arguments: str, name: str = "w1", **extra: str) -> Any:
        return worker(
            self.settings, self.folder, *arguments, name=name, **{FOLDER: str(self.folder)}, **extra
        )

    def is_at(self, gate: str) -> bool:
        return (self.folder / f"at-{gate}").exists()

    def open(self, gate: str) -> None:
        (self.folder / f"open-{gate}").touch()


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    make_settings: Callable[..., Settings],
    produce: Callable[[Settings], Runtime],
    tmp_path: Path,
) -> Site:
    """One slot in each worker; the pool is the test's parameter."""
    settings = make_settings(
        pool=getattr(request, "param", "threads"),
        concurrency=1,
        agents=("tests.acceptance.family_agents",),
        heartbeat_seconds=0.5,
        lease_seconds=2.0,
        sweep_seconds=0.5,
        nudge_after_seconds=1.0,
    )
    return Site(settings, produce(settings), tmp_path)


_names = itertools.count(1)


def chain(kinds: list[str], how: str, last: Plan) -> tuple[list[tuple[str, str]], Plan]:
    """Return agents, new ones, and the plan of the first: each asks the next."""
    agents = [(kind, f"{how}-{next(_names)}") for kind in kinds]
    plan = last
    for agent in reversed(agents[1:]):
        plan = {"ask": agent, "how": how, "of": plan}
    return agents, plan


@pytest.mark.spec("T52")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("site", ["threads", "prefork", "solo"], indirect=True)
def test_parents_children_and_grandchildren_share_one_slot(site: Site) -> None:
    with site.worker():
        for kinds in (["Node"] * 3, ["Tool", "Tool", "Node"]):
            for how in WAYS:
                agents, plan = chain(kinds, how, {"say": "found"})
                row = site.ended(*agents[0], site.submit(*agents[0], plan))
                assert row.status is Status.COMPLETED, (kinds, how, row.error)
                assert site.said(*agents[-1]) == "found"
        both = {"both": [chain(["Node"] * 3, how, {"say": how})[1] for how in WAYS]}
        assert site.ended("Node", "both", site.submit("Node", "both", both)).status is Status.COMPLETED
        assert site.said("Node", "both") == "((chat)) + ((save)) + (completed) + (completed) + (True)"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", ["threads", "prefork", "solo"], indirect=True)
def test_the_response_hook_chains_turns_that_ask_children(site: Site) -> None:
    with site.worker():
        then = [{"ask": ["Node", f"child-{number}"], "how": "chat", "of": {"say": "x"}} for number in (1, 2)]
        site.submit("Node", "chained", {"say": "first"}, metadata={"then": then})
        eventually(lambda: len(site.agent("Node", "chained").get_messages()) == 6, timeout=PATIENCE_SECONDS)
        assert {row.status for row in site.turns("Node", "chained")} == {Status.COMPLETED}
        assert site.said("Node", "chained") == "(x)"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "site, how", [("threads", ("chat", "wait")), ("prefork", ("chat", "chat"))], indirect=["site"]
)
def test_a_circle_across_two_workers_is_broken_by_one(site: Site, how: tuple[str, str]) -> None:
    """`a` asks B while `b` asks A, each in a worker of its own."""
    with (
        site.worker("-Q", "agent.Node.a", name="w1"),
        site.worker("-Q", "agent.Node.b", name="w2"),
    ):
        back = {"say": "answered"}
        a = site.submit("Node", "a", {"gate": "g", "ask": ["Node", "b"], "how": how[0], "of": back})
        b = site.submit("Node", "b", {"gate": "h", "ask": ["Node", "a"], "how": how[1], "of": back})
        eventually(lambda: site.is_at("g") and site.is_at("h"), timeout=PATIENCE_SECONDS)
        site.open("g")
        site.open("h")
        rows = [site.ended("Node", name, row) for name, row in (("a", a), ("b", b))]
    assert sorted(row.status for row in rows) == ["completed", "error"], rows
    (refusal,) = [file.read_text() for file in site.folder.glob("refused-*")]
    assert refusal.startswith(("Node/a -> Node/b -> Node/a:", "Node/b -> Node/a -> Node/b:"))


@pytest.mark.timeout(120)
def test_a_child_of_a_class_that_this_worker_does_not_load_runs_elsewhere(site: Site) -> None:
    with (
        site.worker("-Q", "agent.Tool.t", name="w1", **{ONLY: "1"}) as without,
        site.worker("-Q", "agent.Node.n", name="w2"),
    ):
        row = site.submit("Tool", "t", {"ask": ["Node", "n"], "how": "chat", "of": {"say": "from afar"}})
        assert site.ended("Tool", "t", row).status is Status.COMPLETED
        assert site.said("Node", "n") == "from afar"
        assert "Node/n" not in without.log.read_text().partition("submission.claimed")[2].replace(
            "Tool/t", ""
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", ["threads", "prefork", "solo"], indirect=True)
def test_a_parent_and_its_child_finish_after_the_signal_to_stop(site: Site) -> None:
    with site.worker() as process:
        plan = {"ask": ["Node", "child"], "how": "chat", "of": {"gate": "g", "ask": ["Node", "grandchild"],
                "how": "wait", "of": {"say": "late"}}}  # fmt: skip
        row = site.submit("Node", "parent", plan)
        eventually(lambda: site.is_at("g"), timeout=PATIENCE_SECONDS)
        process.popen.send_signal(signal.SIGTERM)
        eventually(lambda: "hutdown" in process.log.read_text(), describe="the worker is on its way out")
        site.open("g")
        assert process.popen.wait(PATIENCE_SECONDS) == 0
        assert [site.turns("Node", name)[0].status for name in ("parent", "child", "grandchild")] == [
            Status.COMPLETED
        ] * 3
        assert site.agent("Node", "parent").inspect_submission(row).attempt == 1  # type: ignore[union-attr]


def crash(site: Site, process: Process) -> None:
    """Kill a worker, and wait until the ledger knows."""
    process.kill()
    eventually(lambda: alive(site.settings) <= 1, timeout=PATIENCE_SECONDS)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", ["threads", "prefork"], indirect=True)
def test_after_a_crash_no_child_hangs(site: Site) -> None:
    """What had begun ends in error; what still waited in line runs as an ordinary turn of any worker."""
    busy = {"gate": "busy"}
    with site.worker("-Q", "agent.Node.parent", name="w1") as process:
        # The lane of `queued` is held by a paused agent's turn, so that this child's turn cannot begin.
        site.agent("Node", "queued").pause()
        site.submit("Node", "parent", {"both": [
            {"ask": ["Node", "begun"], "how": "chat", "of": busy},
            {"ask": ["Node", "queued"], "how": "chat", "of": {"say": "found"}},
        ]})  # fmt: skip
        eventually(lambda: site.is_at("busy") and site.turns("Node", "queued"), timeout=PATIENCE_SECONDS)
        crash(site, process)
    with site.worker(name="w2"):
        site.agent("Node", "queued").resume()
        for name in ("parent", "begun"):
            (row,) = site.turns("Node", name)
            assert site.ended("Node", name, row.submission_id).status is Status.ERROR
        (row,) = site.turns("Node", "queued")
        assert site.ended("Node", "queued", row.submission_id).status is Status.COMPLETED
        assert site.said("Node", "queued") == "found"
        again = site.submit(
            "Node", "parent", {"ask": ["Node", "begun"], "how": "chat", "of": {"say": "again"}}
        )
        assert site.ended("Node", "parent", again).status is Status.COMPLETED
