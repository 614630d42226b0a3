"""`continue_last_turn`: the assistant goes on after its own last message, in a new one."""

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.engine.talking import Gate, Said, Talk, calling, saying
from think_celery import AbortController, AgentHandle, Think, Turn
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually


@pytest.mark.spec("T51", "T53")
def test_the_answer_goes_on_in_a_message_of_its_own(talk: Talk) -> None:
    talk.handle.save_messages("hi")
    before = talk.handle.get_messages()
    result = talk.handle.continue_last_turn()
    assert (result.status, result.continuation) == ("completed", True)
    after = talk.handle.get_messages()
    assert after[:2] == before
    assert [message["role"] for message in after] == ["user", "assistant", "assistant"]
    assert after[-1]["metadata"] == {"continuation": True}
    assert [turn.continuation for turn in talk.play.turns] == [False, True]
    assert [response.continuation for response in talk.responded(2)] == [False, True]


@pytest.mark.spec("T52")
@pytest.mark.parametrize("said", [[], ["user"]])
def test_without_an_answer_there_is_nothing_to_continue(talk: Talk, said: list[str]) -> None:
    for role in said:
        talk.handle.add_messages([{"role": role, "parts": [{"type": "text", "text": "hi"}]}])
    result = talk.handle.continue_last_turn()
    assert (result.request_id, result.status) == ("", "skipped")
    assert talk.handle.list_submissions(kind="continue") == []
    assert talk.play.responses == []


@pytest.mark.spec("T57")
def test_the_last_message_is_looked_at_again_when_the_turn_starts(talk: Talk) -> None:
    talk.handle.save_messages("hi")
    gate = Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("slow")):
        assert gate.reached.wait(10)
        talk.play.say = saying({"type": "error", "errorText": "nothing said"})
        talk.handle.submit_messages("leaves a question")
        # The running turn has not written its answer yet, so the conversation ends with a question now.
        assert talk.handle.continue_last_turn().status == "skipped"
        talk.handle.add_messages([{"role": "assistant", "parts": [{"type": "text", "text": "hm"}]}])
        with calling(talk.handle.continue_last_turn) as results:
            eventually(lambda: talk.handle.list_submissions(kind="continue", status="pending"))
            gate.open()
    assert (results[0].status, len(talk.play.turns)) == ("skipped", 3)
    assert len(talk.responded(3)) == 3


@pytest.mark.spec("T54")
def test_a_body_is_for_one_turn_and_the_submitted_one_is_remembered(talk: Talk) -> None:
    bodies: list[Any] = []

    async def note(turn: Turn) -> Said:
        bodies.append(turn.body)
        yield "ok"

    talk.play.say = note
    talk.handle.save_messages("hi")
    talk.handle.continue_last_turn()
    receipt = talk.handle.submit_messages("with a body", body={"plan": "free"})
    talk.handle.wait_for_submission(receipt.submission_id, timeout=20)
    talk.handle.continue_last_turn()
    talk.handle.continue_last_turn({"plan": "paid"})
    talk.handle.continue_last_turn()
    assert bodies == [None, None, *[{"plan": "free"}] * 2, {"plan": "paid"}, {"plan": "free"}]
    again = talk.handle.rerun(receipt.submission_id)
    assert again is not None
    talk.handle.wait_for_submission(again.submission_id, timeout=20)
    assert bodies[-1] == {"plan": "free"}
    talk.handle.reset_turn_state()
    talk.handle.continue_last_turn()
    assert bodies[-1] == {"plan": "free"}
    talk.handle.clear_messages()
    talk.handle.save_messages("anew")
    talk.handle.continue_last_turn()
    assert bodies[-1] is None


def test_a_fired_signal_leaves_nothing(talk: Talk) -> None:
    talk.handle.save_messages("hi")
    controller = AbortController()
    controller.abort("no")
    result = talk.handle.continue_last_turn(signal=controller.signal)
    assert (result.status, result.error) == ("aborted", "no")
    assert len(talk.texts()) == 2


asked: list[list[ModelMessage]] = []


class Continuing(Think):
    """Keeps what its model is asked."""

    def get_model(self) -> FunctionModel:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
            asked.append(list(messages))
            yield "more"

        return FunctionModel(stream_function=answer)


@pytest.mark.spec("T55")
def test_no_request_ends_with_the_assistant_speaking(runtime: Runtime) -> None:
    asked.clear()
    handle = AgentHandle("Continuing", "a", runtime=runtime)
    handle.save_messages("hi")
    handle.continue_last_turn()
    *_, answer, last = asked[-1]
    assert isinstance(answer, ModelResponse)
    assert answer.parts == [TextPart("more")]
    assert isinstance(last, ModelRequest)
    assert [message["role"] for message in handle.get_messages()] == ["user", "assistant", "assistant"]
