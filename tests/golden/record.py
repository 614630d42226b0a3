"""Records what the loop of a turn emits: `python -m tests.golden.record` writes the recordings anew.

Scripted models answer, the chunks go through `Speech` as in a turn, random ids are numbered.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from pydantic_ai import ModelRetry, ToolReturn
from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.ui.vercel_ai.response_types import DataChunk, SourceUrlChunk

from tests.engine.driving import agent, make_turn, user
from think_celery.agent import Think
from think_celery.core.address import Address
from think_celery.core.speech import Speech
from think_celery.core.turn import Turn
from think_celery.engine.model import UsageSink
from think_celery.testing import Thought, ToolCall, scripted_model

FOLDER = Path(__file__).parents[1] / "data" / "golden_folding"
Chunk = dict[str, Any]


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def forecast(city: str) -> dict[str, Any]:
    """Return a city's weather."""
    return {"city": city, "celsius": 21.5, "rain": None, "days": [{"day": 1}, {"day": 2}]}


def burn() -> str:
    """Fail."""
    raise RuntimeError("the oven is on fire 🔥")


def guess(number: int) -> str:
    """Take 7 only."""
    if number != 7:
        raise ModelRetry("try 7")
    return "right"


def cite(topic: str) -> ToolReturn:
    """Find something, with its source and a note for the screen."""
    source = SourceUrlChunk(source_id="s1", url=f"https://example.com/{topic}", title=topic)
    return ToolReturn(
        topic.upper(), metadata=[source, DataChunk(type="data-note", id="n1", data={"hits": 1})]
    )


async def hang() -> None:
    """Have the turn cancelled, and never return."""
    next(task for task in asyncio.all_tasks() if task.get_name() == "turn").cancel()
    await asyncio.Event().wait()


async def _signing(*_: Any) -> AsyncIterator[Any]:
    yield {0: DeltaThinkingPart(content="Let me ")}
    yield {0: DeltaThinkingPart(content="see.")}
    yield {0: DeltaThinkingPart(signature="signed")}
    yield "Clear."


async def _parallel(messages: list[Any], _: Any) -> AsyncIterator[Any]:
    if len(messages) > 1:
        yield "Both done."
        return
    yield "Two at once. "
    yield {1: DeltaToolCall(name="double", json_args='{"num', tool_call_id="c1")}
    yield {2: DeltaToolCall(name="forecast", json_args='{"city": "Köl', tool_call_id="c2")}
    yield {1: DeltaToolCall(json_args='ber": 4}')}
    yield {2: DeltaToolCall(json_args='n"}')}


async def _native(*_: Any) -> AsyncIterator[Any]:
    call = NativeToolCallPart(
        tool_name="web_search", args={"query": "bees"}, tool_call_id="c1", provider_name="function"
    )
    yield {0: call}
    yield {1: NativeToolReturnPart(tool_name="web_search", content=[{"url": "x"}], tool_call_id="c1")}
    yield "Found some."


class Mixing(Think, abstract=True):
    """Says something itself, before, between and after its model."""

    def get_model(self) -> Any:
        return scripted_model("The model speaks.")

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | Chunk]:
        yield "Before. "
        yield {"type": "data-progress", "id": "p", "data": 1}
        async for chunk in turn.run_model(self):
            yield chunk
        yield {"type": "data-progress", "id": "p", "data": 2}
        yield "After."
        yield {"type": "file", "url": "data:text/plain;base64,aGk=", "mediaType": "text/plain"}


def scripts() -> dict[str, type[Think]]:
    """Return the agents to record, by name."""
    return {
        "loop-text": agent(scripted_model("Hello there, how are you? 👋🏽")),
        "loop-reasoning": agent(scripted_model([Thought("Hm. "), Thought("I see."), "Here", " it is."])),
        "loop-signed-reasoning": agent(FunctionModel(stream_function=_signing, model_name="signing")),
        "loop-tool": agent(
            scripted_model(["Looking. ", ToolCall("forecast", {"city": "Zürich"})], "21.5 °C."), forecast
        ),
        "loop-several-steps": agent(
            scripted_model(ToolCall("double", {"number": 1}), ToolCall("double", {"number": 2}), "Four."),
            double,
        ),
        "loop-several-tools": agent(
            FunctionModel(stream_function=_parallel, model_name="parallel"), double, forecast
        ),
        "loop-tool-of-the-provider": agent(FunctionModel(stream_function=_native, model_name="native")),
        "loop-tool-raises": agent(scripted_model(ToolCall("burn"), "Oh no."), burn),
        "loop-tool-wrong-arguments": agent(
            scripted_model(ToolCall("double", {"number": "many"}), ToolCall("double", {"number": 2}), "4."),
            double,
        ),
        "loop-tool-asks-again": agent(
            scripted_model(ToolCall("guess", {"number": 1}), ToolCall("guess", {"number": 7}), "Seven."),
            guess,
        ),
        "loop-tool-unknown": agent(scripted_model(ToolCall("fly"), "I cannot fly."), double),
        "loop-tool-with-sources": agent(scripted_model(ToolCall("cite", {"topic": "bees"}), "Bees."), cite),
        "loop-too-many-steps": agent(scripted_model(ToolCall("double", {"number": 1})), double, max_steps=2),
        "loop-model-fails": agent(scripted_model(["Half an ", RuntimeError("the provider hung up")])),
        "loop-model-fails-in-an-input": agent(
            scripted_model([ToolCall("double", {"number": 1}), RuntimeError("gone")]), double
        ),
        "loop-cancelled-in-a-tool": agent(scripted_model(["Wait. ", ToolCall("hang")], "Never."), hang),
        "loop-mixed": Mixing,
    }


def record(answering: type[Think]) -> list[Chunk]:
    """Return the chunks of one turn, as `Folding` gets them, ids numbered."""
    return _numbered(asyncio.run(_record(answering)))


async def _record(answering: type[Think]) -> list[Chunk]:
    chunks: list[Chunk] = []
    try:
        await asyncio.create_task(_speak(answering, chunks), name="turn")
    except asyncio.CancelledError:
        chunks.append({"type": "abort"})
    except Exception as error:
        chunks.append({"type": "error", "errorText": str(error)})
    return chunks


async def _speak(answering: type[Think], chunks: list[Chunk]) -> None:
    speech = Speech()
    spoken = answering(Address("Test", "a")).on_chat_message(make_turn([user("Hello")], UsageSink()))
    async with aclosing(spoken) as items:  # type: ignore[type-var]
        async for item in items:
            chunks += speech.say(item)
    chunks += speech.close()


def _numbered(chunks: list[Chunk]) -> list[Chunk]:
    names: dict[str, str] = {}
    for chunk in chunks:
        for key, short in (("id", "block"), ("toolCallId", "call")):
            if len(chunk.get(key, "")) > 30:
                chunk[key] = names.setdefault(chunk[key], f"{short}-{len(names) + 1}")
    return chunks


def text_of(chunks: list[Chunk]) -> str:
    """Return a recording's file content: one chunk a line."""
    return "".join(json.dumps(chunk) + "\n" for chunk in chunks)


if __name__ == "__main__":
    for name, answering in scripts().items():
        (FOLDER / f"{name}.jsonl").write_text(text_of(record(answering)))
