"""The hooks of a turn: in which order they fire, what they decide, and what a failure of theirs does."""

import logging
import threading
from typing import Any

import pytest
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.messages import PartStartEvent

from tests.engine.driving import Base, ask, user
from tests.engine.hooking import double, hooked, raising
from think_celery import Think
from think_celery.core.hook import (
    ChunkContext,
    StepContext,
    StepResult,
    ToolDecision,
    ToolOutcome,
    TurnContext,
)
from think_celery.core.hook import ToolCall as Call
from think_celery.testing import Item, Thought, ToolCall, scripted_model


class Listening(Base, abstract=True):
    """Notes every hook in order."""

    heard: list[str]

    def before_turn(self, context: TurnContext) -> None:
        self.heard.append("before_turn")

    async def before_step(self, context: StepContext) -> None:
        self.heard.append(f"before_step {context.step_number}")

    def before_tool_call(self, call: Call) -> None:
        self.heard.append("before_tool_call")

    async def after_tool_call(self, outcome: ToolOutcome) -> None:
        self.heard.append("after_tool_call")

    def on_step_finish(self, step: StepResult) -> None:
        self.heard.append(f"on_step_finish {step.step_number}")

    async def on_chunk(self, chunk: ChunkContext) -> None:
        if (note := f"on_chunk {chunk.step_number}") != self.heard[-1]:
            self.heard.append(note)


def test_the_order_of_the_hooks_of_a_turn_with_a_tool() -> None:
    heard: list[str] = []

    def noting(number: int) -> int:
        heard.append("execute")
        return number

    class Noting(Listening, abstract=True):
        model = scripted_model(["Let me ", ToolCall("noting", {"number": 1})], "Done it is.")
        tools = (noting,)

    Noting.heard = heard
    assert ask(Noting, user("Go")).failure is None
    assert heard == [
        "before_turn",
        "before_step 0",
        "on_chunk 0",
        "before_tool_call",
        "execute",
        "after_tool_call",
        "on_step_finish 0",
        "before_step 1",
        "on_chunk 1",
        "on_step_finish 1",
    ]


@pytest.mark.spec("T146")
def test_the_steps_of_a_loop_are_counted_and_told() -> None:
    begun: list[StepContext] = []
    ended: list[StepResult] = []
    script: list[Item] = [Thought("hm"), "Look: ", ToolCall("double", {"number": 1})]
    model = scripted_model(script, ToolCall("double", {"number": 2}), "Four.")
    chosen = hooked(model, double, before_step=begun.append, on_step_finish=ended.append)
    found = ask(chosen, user("Go"))
    assert [(len(step.steps), step.step_number) for step in begun] == [(0, 0), (1, 1), (2, 2)]
    assert [len(step.messages) for step in begun] == [1, 3, 5]
    assert begun[0].model.model_name == "scripted"
    assert [step.step_number for step in ended] == [0, 1, 2]
    assert begun[2].steps == tuple(ended[:2])
    first, _, last = ended
    assert (first.text, first.reasoning, last.text) == ("Look: ", "hm", "Four.")
    assert [(call.tool_name, call.input) for call in first.tool_calls] == [("double", {"number": 1})]
    assert [(result.success, result.output) for result in first.tool_results] == [(True, 2)]
    assert first.tool_results[0].tool_call_id == first.tool_calls[0].tool_call_id
    assert (last.tool_calls, last.tool_results) == ((), ())
    assert found.usage is not None
    assert sum(step.usage["outputTokens"] for step in ended) == found.usage["outputTokens"]


@pytest.mark.spec("T148")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_raising_before_tool_call_fails_the_call_and_not_the_turn(is_async: bool) -> None:
    outcomes: list[ToolOutcome] = []
    requests: list[Any] = []
    called: list[int] = []

    async def raising_later(call: Call) -> None:
        raising()

    def work() -> None:
        called.append(1)

    model = scripted_model(ToolCall("work"), "I see.", on_request=requests.append)
    hook = raising_later if is_async else raising
    found = ask(hooked(model, work, before_tool_call=hook, after_tool_call=outcomes.append), user("Go"))
    assert (found.failure, found.text, called) == (None, "I see.", [])
    (outcome,) = outcomes
    assert (outcome.success, outcome.output) == (False, None)
    assert isinstance(outcome.error, LookupError)
    assert found.part("tool-work")["errorText"] == "LookupError: no such customer"
    assert "no such customer" in str(requests[-1])


@pytest.mark.parametrize("decision", [None, ToolDecision(), ToolDecision("allow")])
def test_an_allowed_tool_runs_once(decision: ToolDecision | None) -> None:
    calls: list[int] = []
    outcomes: list[ToolOutcome] = []

    def work(number: int) -> int:
        calls.append(number)
        return number + 1

    model = scripted_model(ToolCall("work", {"number": 1}), "ok")
    chosen = hooked(model, work, before_tool_call=lambda call: decision, after_tool_call=outcomes.append)
    assert ask(chosen, user("Go")).part("tool-work")["output"] == 2
    assert calls == [1]
    (outcome,) = outcomes
    assert (outcome.tool_name, outcome.input, outcome.success, outcome.output) == (
        "work",
        {"number": 1},
        True,
        2,
    )
    assert outcome.error is None
    assert outcome.duration_ms >= 0


def decided(decision: ToolDecision) -> tuple[dict[str, Any], ToolOutcome, list[int]]:
    """Let a decision be made about a call of `work(1)`; returns its part, its outcome and the runs."""
    calls: list[int] = []
    outcomes: list[ToolOutcome] = []

    def work(number: int) -> int:
        calls.append(number)
        return number + 1

    async def decide(call: Call) -> ToolDecision:
        assert (call.tool_name, call.input, call.step_number) == ("work", {"number": 1}, 0)
        return decision

    model = scripted_model(ToolCall("work", {"number": 1}), "ok")
    found = ask(hooked(model, work, before_tool_call=decide, after_tool_call=outcomes.append), user("Go"))
    assert (found.failure, found.text) == (None, "ok")
    (outcome,) = outcomes
    return found.part("tool-work"), outcome, calls


def test_another_input_is_run_and_the_models_is_told() -> None:
    part, outcome, calls = decided(ToolDecision("allow", input={"number": 41}))
    assert calls == [41]
    assert (outcome.input, outcome.output, outcome.success) == ({"number": 1}, 42, True)
    assert (part["input"], part["output"]) == ({"number": 1}, 42)


def test_a_blocked_call_says_so() -> None:
    part, outcome, calls = decided(ToolDecision("block"))
    assert (calls, outcome.success) == ([], True)
    assert "blocked" in part["output"]
    part, outcome, _ = decided(ToolDecision("block", reason="not on Sundays"))
    assert (part["output"], outcome.output) == ("not on Sundays", "not on Sundays")


def test_a_substituted_result_is_the_result() -> None:
    part, outcome, calls = decided(ToolDecision("substitute", output={"cached": True}))
    assert (calls, outcome.success, outcome.output) == ([], True, {"cached": True})
    assert part["output"] == {"cached": True}
    part, outcome, _ = decided(ToolDecision("substitute", output=object()))
    assert not outcome.success
    assert "cannot be written as JSON" in part["errorText"]


def test_a_retry_that_a_tool_asks_for_is_a_failed_call() -> None:
    outcomes: list[ToolOutcome] = []

    def picky() -> str:
        raise ModelRetry("say please")

    chosen = hooked(scripted_model(ToolCall("picky"), "ok"), picky, after_tool_call=outcomes.append)
    found = ask(chosen, user("Go"))
    assert found.text == "ok"
    assert [outcome.success for outcome in outcomes] == [False]
    assert "say please" in str(outcomes[0].error)


@pytest.mark.parametrize("name", ["after_tool_call", "on_step_finish", "on_chunk"])
def test_a_listener_that_raises_is_logged_and_ignored(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = scripted_model(ToolCall("double", {"number": 1}), "ok")
    with caplog.at_level(logging.ERROR):
        found = ask(hooked(model, double, **{name: raising}), user("Go"))
    assert (found.failure, found.text) == (None, "ok")
    assert found.part("tool-double")["output"] == 2
    assert f"hook.failed hook={name}" in caplog.text


def test_on_chunk_hears_the_models_own_events() -> None:
    heard: list[ChunkContext] = []
    model = scripted_model(["a ", "b"])
    assert ask(hooked(model, on_chunk=heard.append), user("Go")).text == "a b"
    assert isinstance(heard[0].chunk, PartStartEvent)
    assert {chunk.step_number for chunk in heard} == {0}


def test_plain_hooks_run_in_threads_with_the_context_of_the_turn() -> None:
    loops: set[bool] = set()
    main = threading.get_ident()

    class Plain(Listening, abstract=True):
        heard: list[str] = []
        model = scripted_model(ToolCall("double", {"number": 1}), "ok")
        tools = (double,)

        def before_turn(self, context: TurnContext) -> None:
            loops.add(threading.get_ident() == main)

        def before_step(self, context: StepContext) -> None:  # type: ignore[override]
            loops.add(threading.get_ident() == main)

    assert ask(Plain, user("Go")).failure is None
    assert loops == {False}


def test_tools_find_what_hooks_left_and_the_metadata_of_the_submission() -> None:
    class Noting(Base, abstract=True):
        model = scripted_model(ToolCall("who"), "ok")
        customer = ""

        def before_turn(self, context: TurnContext) -> None:
            self.customer = f"customer of {context.submission.agent}"

        def get_tools(self) -> list[Any]:
            def who(context: RunContext[Any]) -> list[Any]:
                return [context.deps.customer, context.metadata]

            return [who]

    found = ask(Noting, user("Go"), metadata={"source": "shop"})
    assert found.part("tool-who")["output"] == ["customer of Test/a", {"source": "shop"}]


def test_hooks_know_their_agent() -> None:
    class Named(Base, abstract=True):
        model = scripted_model(ToolCall("who"), "ok")

        def get_tools(self) -> list[Any]:
            def who(context: RunContext[Think]) -> str:
                return context.deps.name

            return [who]

        def before_tool_call(self, call: Call) -> ToolDecision | None:
            return ToolDecision("block", reason=f"not for {self.name}")

    assert ask(Named, user("Go")).part("tool-who")["output"] == "not for a"
