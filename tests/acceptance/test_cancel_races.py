"""Whatever the moment of a cancel: its answer, the row, the conversation and the hooks tell one story."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from tests.acceptance import cancel_agents
from tests.acceptance.cancel_stage import (
    Stage,
    check_alone,
    ended,
    is_in_order,
    make_settings,
    roles,
    staged,
)
from think_celery import AgentHandle
from think_celery.core.submission import CancelResult, Submission
from think_celery.dev.servers import Addresses
from think_celery.engine.runtime import Runtime
from think_celery.engine.turn import Memory, run_turn
from think_celery.ledger import lanes
from think_celery.messages import user_message

PIECES = 10
STEPS = [number * 0.005 for number in range(40)]
QUICK = [number * 0.0005 for number in range(60)]


@pytest.fixture(scope="module", params=["threads", "prefork"])
def stage(
    servers: Addresses, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """A worker process of each pool, and this process as the producer."""
    folder = tmp_path_factory.mktemp(f"cancel-{request.param}")
    with staged(make_settings(servers, pool=request.param), folder) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Case:
    """One cancel: what it answered, and what everybody else tells about it."""

    result: CancelResult
    row: Submission
    user_ids: list[str]
    transcript: list[dict[str, Any]]
    hooks: list[str]
    said: int
    started: bool
    complete: bool
    """The callers' process has the class, so nobody may miss a hook."""


def race(stage: Stage, name: str, *, delay: float, plan: dict[str, Any], type_name: str = "Racer") -> Case:
    """Cancel a turn after a delay, submit the next, wait for it, and collect what all sides tell."""
    handle = stage.handle(name, type_name)
    messages = [user_message("first"), user_message("second")]
    target = handle.submit_messages(messages, submission_id="target", metadata=plan)
    Event().wait(delay)
    result = handle.cancel_submission(target.submission_id, f"after {delay}")
    return collect(stage, handle, result, [message.id for message in messages])


def collect(stage: Stage, handle: AgentHandle, result: CancelResult, user_ids: list[str]) -> Case:
    """Run one turn behind the cancelled one, and collect what all sides tell."""
    name = handle.address.name
    following = handle.submit_messages("next", submission_id="next", metadata={"pieces": 1, "pause": 0})
    last = ended(handle, following.submission_id)
    assert last.status == "completed", last
    row = ended(handle, "target")
    notes = stage.notes(name)
    check_alone(notes)
    transcript = handle.get_messages()
    check_next(notes, transcript)
    own = [each for each in notes if each.submission == "target"]
    return Case(
        result=result,
        row=row,
        user_ids=user_ids,
        transcript=transcript,
        hooks=[each.data for each in own if each.what == "hook"],
        said=sum(each.what == "said" for each in own),
        started=any(each.what == "start" for each in own),
        complete=handle.address.type_name == "Racer",
    )


def check_next(notes: list[Any], transcript: list[dict[str, Any]]) -> None:
    """The turn behind saw the conversation as it is now: nothing came in behind its back."""
    (seen,) = [each.data for each in notes if each.submission == "next" and each.what == "start"]
    ids = [message["id"] for message in transcript]
    assert seen == ids[:-1]
    assert [m["parts"][0].get("text") for m in transcript[-2:] if m["role"] == "user"] == ["next"]
    hooks = [each.data for each in notes if each.submission == "next" and each.what == "hook"]
    # A lane at work may take a row before its producer has called the hook of the acceptance.
    assert [each for each in hooks if each != "pending"] == ["running", "completed"]


def check(case: Case) -> None:
    """Answer, row, conversation and hooks agree."""
    assert case.result.submission_id == "target"
    assert case.result.submission is not None
    if case.result.outcome == "already_terminal":
        assert case.result.submission == case.row
        check_completed(case)
        return
    assert case.result.outcome == "cancelled"
    assert case.row.status == case.result.submission.status == "aborted"
    assert case.row.error == case.result.submission.error
    assert case.row.error is not None
    assert case.row.completed_at == case.result.submission.completed_at
    check_conversation(case)
    if case.result.previous_status == "pending":
        assert not case.result.messages_applied
        assert case.row.started_at is None
        check_hooks(case, ["pending", "aborted"])
    else:
        assert case.result.previous_status == "running"
        assert case.row.started_at is not None
        check_hooks(case, ["pending", "running", "aborted"])


def check_hooks(case: Case, expected: list[str]) -> None:
    if case.complete:
        assert case.hooks == expected, case
    assert is_in_order(case.hooks, expected), case
    assert case.hooks[-1:] == expected[-1:], case


def check_conversation(case: Case) -> None:
    """The messages are there if and only if the cancel said so; what was said is kept and linked."""
    ids = [message["id"] for message in case.transcript]
    applied = bool(case.result.messages_applied)
    assert {each in ids for each in case.user_ids} == {applied}, case
    if not applied:
        assert not case.started, case
        assert case.row.message_id is None
        assert len(ids) == 2, case
        return
    behind = len(case.user_ids)
    if case.row.message_id is None:
        assert case.said == 0, case
        assert len(ids) == behind + 2, case
        return
    partial = case.transcript[behind]
    assert (partial["id"], partial["role"]) == (case.row.message_id, "assistant"), case
    text = "".join(part.get("text", "") for part in partial["parts"])
    whole = "".join(f"{number} " for number in range(PIECES))
    assert whole.startswith(text), case
    assert case.said <= text.count(" ") <= case.said + 1, case


def check_completed(case: Case) -> None:
    assert case.row.status == "completed", case
    assert case.result.previous_status is None
    assert case.said == PIECES
    assert case.row.message_id in [message["id"] for message in case.transcript[:-2]]
    check_hooks(case, ["pending", "running", "completed"])


def sweep(stage: Stage, label: str, delays: list[float], plan: dict[str, Any]) -> list[Case]:
    """Race at all these moments, several agents at once; every other agent's class is the workers' alone."""
    types = ["Racer", "Remote"]
    with ThreadPoolExecutor(6) as threads:
        races = [
            threads.submit(
                race, stage, f"{label}{number}", delay=delay, plan=plan, type_name=types[number % 2]
            )
            for number, delay in enumerate(delays)
        ]
        cases = [each.result() for each in races]
    for case in cases:
        check(case)
    return cases


@pytest.mark.timeout(150)
@pytest.mark.spec("S50", "S62", "S68")
def test_a_cancel_at_any_moment_of_a_turn(stage: Stage) -> None:
    """Every 5 ms from the acceptance to beyond the end of a turn of about 100 ms."""
    cases = sweep(stage, "step", [*STEPS, 1.0, 2.0], {"pieces": PIECES, "pause": 0.01})
    seen = {(case.result.outcome, case.result.previous_status) for case in cases}
    assert {("cancelled", "running"), ("already_terminal", None)} <= seen


@pytest.mark.timeout(150)
@pytest.mark.spec("S58", "S68")
def test_a_cancel_at_any_moment_of_a_turn_without_pauses(stage: Stage) -> None:
    """Every half millisecond of a turn that is all claim, apply and settle."""
    sweep(stage, "quick", QUICK, {"pieces": PIECES, "pause": 0})


# The named points


def point(stage: Stage, name: str, plan: dict[str, Any], *, at: str | None, gate: str) -> Case:
    """Cancel a turn that waits at a gate, open the gate, and collect what all sides tell."""
    handle = stage.handle(name)
    messages = [user_message("first"), user_message("second"), user_message("third")]
    handle.submit_messages(messages, submission_id="target", metadata=plan)
    if at is not None:
        stage.told(name, at, submission="target", count=2 if at == "hook" else 1)
    result = handle.cancel_submission("target", "stop")
    stage.open_gate(gate)
    return collect(stage, handle, result, [message.id for message in messages])


@pytest.mark.spec("S55")
def test_before_the_claim(stage: Stage) -> None:
    handle = stage.handle("unclaimed")
    handle.pause()
    handle.submit_messages("first", submission_id="target")
    result = handle.cancel_submission("target", "stop")
    handle.resume()
    case = collect(stage, handle, result, ["none"])
    check(case)
    assert case.result.previous_status == "pending"


@pytest.mark.spec("S51", "S52", "S61", "S62")
def test_during_the_hook_of_the_start(stage: Stage) -> None:
    """Claimed is not started: none of three messages is stored, and the end is told after the start was."""
    case = point(stage, "hooked", {"hook_gate": "hooked"}, at="hook", gate="hooked")
    check(case)
    assert (case.result.previous_status, case.result.messages_applied) == ("running", False)
    told = [each.what for each in stage.notes("hooked") if each.submission == "target"]
    assert told == ["hook", "hook", "hook-end", "hook"]


@pytest.mark.spec("S50", "S62")
def test_at_the_first_chunk(stage: Stage) -> None:
    case = point(
        stage, "spoken", {"gate": "spoken", "pieces": PIECES, "stopping": 0.2}, at="said", gate="spoken"
    )
    check(case)
    assert (case.result.messages_applied, case.row.message_id is not None) == (True, True)
    assert case.said == 1


def test_after_the_end(stage: Stage) -> None:
    handle = stage.handle("over")
    handle.submit_messages("first", submission_id="target", metadata={"pause": 0})
    before = ended(handle, "target")
    result = handle.cancel_submission("target", "stop")
    check(collect(stage, handle, result, []))
    assert result.submission == before


@pytest.mark.parametrize("tool", ["patient", "stubborn"])
def test_in_a_tool(stage: Stage, tool: str) -> None:
    """A tool that can be stopped is; another finishes when it likes, and its result is not used."""
    name = f"{tool}-{stage.settings.pool}"
    handle = stage.handle(name, "Tooled")
    handle.submit_messages("work", submission_id="target")
    stage.told(name, "tool")
    result = handle.cancel_submission("target", "stop")
    assert (result.outcome, result.messages_applied) == ("cancelled", True)
    handle.submit_messages("work again", submission_id="next")
    stage.told(name, "tool-end" if tool == "patient" else "tool", count=1 if tool == "patient" else 2)
    assert ended(handle, "target").status == "aborted"
    stage.open_gate(f"tool-{name}")
    assert ended(handle, "next").status == "completed"
    row = ended(handle, "target")
    assert (row.status, row.error) == ("aborted", "stop")
    assert [text for role, text in roles(handle)] == ["work", "before ", "work again", "before after"]
    partial = handle.get_message(row.message_id or "")
    assert partial is not None
    (used,) = [part for part in partial["parts"] if part["type"] == f"tool-{tool}"]
    assert used["state"] == "output-error"
    assert len(stage.told(name, "tool-end", count=2)) == len(stage.notes(name, "tool")) == 2
    hooks = [each.data for each in stage.notes(name, "hook") if each.submission == "target"]
    assert hooks == ["pending", "running", "aborted"]


def test_between_claim_and_append(runtime: Runtime) -> None:
    handle = AgentHandle("Silent", "claimed", runtime=runtime)
    handle.submit_messages("never", submission_id="target")
    claim = lanes.claim(runtime.database, handle.address, worker=runtime.worker_id, claim_id=uuid4())
    assert isinstance(claim, lanes.Claim)
    result = handle.cancel_submission("target", "stop")
    assert (result.outcome, result.previous_status, result.messages_applied) == (
        "cancelled",
        "running",
        False,
    )
    outcome = run_turn(runtime, claim, Memory())
    assert outcome is not None
    assert outcome.run is None
    settled = lanes.settle(runtime.database, claim, outcome.ending, worker=runtime.worker_id, next_claim=None)
    assert settled.row is not None
    assert settled.row.submission == result.submission
    assert handle.get_messages() == []


@pytest.mark.spec("S68")
def test_before_settle(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All was said: it stays in the conversation, the row is aborted all the same."""
    monkeypatch.setenv(cancel_agents.FOLDER, str(tmp_path))
    handle = AgentHandle("Silent", "finished", runtime=runtime)
    handle.submit_messages("soon", submission_id="target", metadata={"pause": 0})
    claim = lanes.claim(runtime.database, handle.address, worker=runtime.worker_id, claim_id=uuid4())
    assert isinstance(claim, lanes.Claim)
    outcome = run_turn(runtime, claim, Memory())
    assert outcome is not None
    assert outcome.ending.status == "completed"
    result = handle.cancel_submission("target", "stop")
    assert (result.outcome, result.messages_applied) == ("cancelled", True)
    settled = lanes.settle(runtime.database, claim, outcome.ending, worker=runtime.worker_id, next_claim=None)
    assert settled.row is not None
    assert (settled.row.submission.status, settled.row.submission.error) == ("aborted", "stop")
    assert roles(handle) == [("user", "soon"), ("assistant", "never heard")]
    assert handle.get_messages()[1]["id"] == settled.row.submission.message_id
