"""From the events of a run to the chunks that are streamed and stored."""

from collections.abc import AsyncIterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from pydantic_ai.run import AgentRunResultEvent
from pydantic_ai.ui.vercel_ai import VercelAIEventStream
from pydantic_ai.ui.vercel_ai.response_types import (
    BaseChunk,
    DataChunk,
    DoneChunk,
    ErrorChunk,
    FinishChunk,
    MessageMetadataChunk,
)
from pydantic_core import to_jsonable_python

from think_celery.agent import Think
from think_celery.core.message import OUTPUT
from think_celery.core.turn import Chunk
from think_celery.core.wire import clean_json
from think_celery.engine.step_hooks import StepHooks

_BOOKKEEPING = {
    "data-tool-availability-delta",
    "data-model-settings-delta",
    "data-capability-load-delta",
}
"""What the library notes for itself when a step has other tools or settings than the one before."""
_NULLABLE = {"tool-output-available": "output", "tool-input-available": "input", "tool-input-error": "input"}


@dataclass
class ChunkStream(VercelAIEventStream[Think, Any]):
    """Makes chunks of the library's events, and leaves out what is not for observers.

    Attributes:
        steps: The run, which knows its internal tools and whether it was stopped.
    """

    _: KW_ONLY
    steps: StepHooks
    _failure: Exception | None = field(default=None, init=False)
    _hidden: set[str] = field(default_factory=set, init=False)

    async def chunks(self, events: AsyncIterator[Any]) -> AsyncIterator[Chunk]:
        """Yield the chunks as JSON objects, the first one not before something was sent to the model.

        Raises:
            Exception: What the run raised, after chunks that close what was open.
        """
        held: list[Chunk] = []
        async for chunk in self.transform_stream(events):
            if (plain := self._plain(chunk)) is not None:
                held.append(plain)
            if self.steps.has_begun:
                for plain in held:
                    yield plain
                held.clear()
            if isinstance(chunk, ErrorChunk) and self._failure is not None:
                raise self._failure

    async def handle_run_result(self, event: AgentRunResultEvent[Any]) -> AsyncIterator[BaseChunk]:
        """Say the structured answer, if there is one."""
        output = event.result.output
        is_text = isinstance(output, str) and output == event.result.response.text
        if output is not None and not is_text:
            yield DataChunk(type=OUTPUT, data=clean_json(to_jsonable_python(output)))
        async for chunk in super().handle_run_result(event):
            yield chunk

    async def on_error(self, error: Exception) -> AsyncIterator[BaseChunk]:
        """Keep the exception that the library would turn into an error chunk."""
        self._failure = error
        async for chunk in super().on_error(error):
            yield chunk

    def _plain(self, chunk: BaseChunk) -> Chunk | None:
        if isinstance(chunk, (DoneChunk, MessageMetadataChunk, ErrorChunk)):
            # Metadata: only the library's own time stamp, which would end up in every stored message.
            return None
        if isinstance(chunk, FinishChunk) and self.steps.is_stopped:
            chunk.finish_reason = "tool-calls"  # as the AI SDK says when it stops counting steps
        plain: Chunk = chunk.model_dump(mode="json", by_alias=True, exclude_none=True)
        if (field := _NULLABLE.get(plain["type"])) is not None:
            plain.setdefault(field, None)
        return None if self._is_hidden(plain) else plain

    def _is_hidden(self, plain: Chunk) -> bool:
        if plain["type"] in _BOOKKEEPING:
            return True
        if plain["type"].startswith("reasoning-"):
            return not self.steps.plan.send_reasoning
        if plain.get("toolName") in self.steps.internal_tools:
            self._hidden.add(plain["toolCallId"])
        return plain.get("toolCallId") in self._hidden
