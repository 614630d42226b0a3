"""The test kit that applications use: the scripted model and `eventually`."""

import threading
from typing import Any

import pytest

from tests.engine.driving import Answer, ask, user
from think_celery import Think
from think_celery.testing import ToolCall, eventually, scripted_model


def run(*steps: Any, text: str = "Hi") -> Answer:
    def note(word: str) -> str:
        return word

    def get_model(self: Think) -> Any:
        return scripted_model(*steps)

    body = {"get_model": get_model, "get_tools": lambda self: [note]}
    return ask(type("Kit", (Think,), body, abstract=True), user(text))


def test_text_is_streamed_word_by_word_without_loss() -> None:
    found = run("  One two\nthree ")
    assert found.text == "  One two\nthree "
    assert found.types.count("text-delta") == 3


def test_a_list_is_streamed_as_it_is_cut() -> None:
    assert [chunk["delta"] for chunk in run(["On", "e"]).chunks if "delta" in chunk] == ["On", "e"]


def test_a_function_answers_what_was_asked() -> None:
    assert run(lambda text: f"You said {text}.", text="Hello").text == "You said Hello."


def test_every_request_of_a_turn_takes_the_next_step() -> None:
    found = run(ToolCall("note", {"word": "a"}), [ToolCall("note", {"word": "b"})], "End")
    assert [chunk["input"] for chunk in found.chunks if "input" in chunk] == [{"word": "a"}, {"word": "b"}]
    assert found.text == "End"


def test_an_exception_is_raised() -> None:
    assert str(run(["a", RuntimeError("boom")]).failure) == "boom"


def test_a_script_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        scripted_model()


def test_eventually_returns_the_first_true_answer() -> None:
    happened = threading.Event()
    threading.Timer(0.05, happened.set).start()
    assert eventually(lambda: "yes" if happened.is_set() else "", interval=0.001) == "yes"


def test_eventually_gives_up_and_tells_the_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"three apples.*last answer 0"):
        eventually(lambda: 0, timeout=0.05, describe="three apples")


def test_eventually_waits_for_an_assertion_and_raises_the_last_one() -> None:
    calls: list[int] = []

    def check() -> bool:
        calls.append(1)
        assert len(calls) > 3, f"only {len(calls)}"
        return True

    assert eventually(check, interval=0.001)

    def never() -> bool:
        raise AssertionError("still not")

    with pytest.raises(AssertionError, match="still not"):
        eventually(never, timeout=0.05)
