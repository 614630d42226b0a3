"""Test kit: a scripted model that needs no network, and waiting for a condition with a deadline."""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a scripted model makes.

    Attributes:
        name: The tool.
        arguments: Its arguments, a JSON object.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning that a scripted model shows."""

    text: str


Item = str | ToolCall | Thought | BaseException
Step = Item | Sequence[Item] | Callable[[str], Item | Sequence[Item]]


def scripted_model(
    *steps: Step,
    pause_seconds: float = 0.0,
    on_request: Callable[[list["ModelMessage"]], None] | None = None,
) -> "Model":
    """Return a model that follows a script, for tests and demonstrations.

    It keeps no state: which step is due follows from the conversation, so every turn starts at the first
    step, in whatever process it runs. Requests beyond the script repeat the last step.

    Args:
        steps: What to answer to each request of a turn: a text (streamed word by word), a `ToolCall`, a
            `Thought`, an exception to raise, a list of those (texts in a list are streamed as they are cut),
            or a function of the last user text that returns one of these.
        pause_seconds: Pause before each item.
        on_request: Called with the messages of each request.
    """
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    if not steps:
        raise ValueError("a script needs at least one step, such as a text")

    async def stream(messages: list["ModelMessage"], info: AgentInfo) -> AsyncIterator[Any]:
        if on_request is not None:
            on_request(messages)
        prompt, answered = _last_prompt(messages)
        step = steps[min(answered, len(steps) - 1)]
        for index, item in enumerate(_items(step(prompt) if callable(step) else step)):
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            for delta in _deltas(index, item):
                yield delta

    return FunctionModel(stream_function=stream, model_name="scripted")


def _last_prompt(messages: Sequence["ModelMessage"]) -> tuple[str, int]:
    """Return the last user text and how often the model has answered since."""
    answered = 0
    for message in reversed(messages):
        prompts = [part for part in message.parts if part.part_kind == "user-prompt"]
        if prompts:
            content = prompts[-1].content
            words = (
                [content] if isinstance(content, str) else [part for part in content if isinstance(part, str)]
            )
            return "".join(words), answered
        answered += message.kind == "response"
    return "", answered


def _items(step: Any) -> list[Item]:
    if isinstance(step, str):
        return list(re.findall(r"\s*\S+\s*$|\s*\S+", step)) or [step]
    return [step] if isinstance(step, (ToolCall, Thought, BaseException)) else list(step)


def _deltas(index: int, item: Item) -> list[Any]:
    from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall

    if isinstance(item, BaseException):
        raise item
    if isinstance(item, str):
        return [item]
    if isinstance(item, Thought):
        return [{index: DeltaThinkingPart(content=item.text)}]
    text = json.dumps(item.arguments)
    middle = len(text) // 2
    opening = DeltaToolCall(name=item.name, json_args=text[:middle])
    return [{index: opening}, {index: DeltaToolCall(json_args=text[middle:])}]


def eventually(
    check: Callable[[], T], *, timeout: float = 10.0, interval: float = 0.02, describe: str = ""
) -> T:
    """Call `check` until it returns something true, and return that.

    Args:
        check: The condition; an AssertionError counts as "not yet".
        timeout: Seconds to wait at most.
        interval: Seconds between two calls.
        describe: What is awaited, for the error.

    Raises:
        AssertionError: The time is over; tells the last answer, or is the last error of `check`.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        try:
            answer: object = check()
            failure = AssertionError(
                f"not within {timeout} s: {describe or check!r} (last answer {answer!r})"
            )
        except AssertionError as error:
            answer, failure = None, error
        if answer:
            return answer  # type: ignore[return-value]
        if time.monotonic() >= deadline:
            raise failure
        pause.wait(interval)
