"""What the hooks of a turn are given, and what they may answer (T 5).

`Any` stands for what belongs to the model library: models, tools, model messages, stream events and output
types.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from think_celery.core.submission import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """What `before_turn` is told.

    Attributes:
        system: The system prompt as `get_system_prompt` gives it, whatever earlier turns overrode.
        messages: The conversation in order (AI SDK `UIMessage` as JSON objects), interrupted calls repaired.
        tools: What `get_tools` returned.
        model: What `get_model` returned, a name or a model.
        continuation: True when the assistant goes on after its own last message.
        body: What came with the request, any JSON value; None when there is none.
        metadata: The submission's metadata, None when it was accepted without.
        submission: The row as it stood when the attempt began.
    """

    system: str
    messages: list[dict[str, Any]]
    tools: list[Any]
    model: Any
    continuation: bool
    body: Any
    metadata: dict[str, Any] | None
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnConfig:
    """What `before_turn` wants different, for this turn only; what is None stays as it is.

    Attributes:
        model: A name or a model.
        system: The system prompt; empty for none.
        messages: The conversation that the model is shown; the stored one is not changed.
        tools: Further tools and toolsets; of equal names these win.
        active_tools: Names of the only tools that the model sees and may call.
        tool_choice: `auto`, `none`, `required`, or names of which one must be called.
        max_steps: Model requests at most, 1 or more.
        stop_when: Asked after each step with the steps so far; true ends the turn. May be a list. Never lifts
            the bound of `max_steps`.
        send_reasoning: False leaves the model's reasoning out of the stream and the stored message.
        settings: Model settings (pydantic-ai `ModelSettings`), merged over the class' `model_settings`.
        output_type: What the answer is to be, see `Think.output_type`; `str` for plain text.
    """

    model: Any = None
    system: str | None = None
    messages: Sequence[dict[str, Any]] | None = None
    tools: Sequence[Any] = ()
    active_tools: Sequence[str] | None = None
    tool_choice: Any = None
    max_steps: int | None = None
    stop_when: "StopWhen | Sequence[StopWhen]" = ()
    send_reasoning: bool | None = None
    settings: Mapping[str, Any] | None = None
    output_type: Any = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for.

    Attributes:
        tool_name: The tool.
        tool_call_id: Of the call, as in the stream and the stored message.
        input: The arguments as the model gave them, a JSON object; a copy.
        step_number: The step that asked for it, from 0.
    """

    tool_name: str
    _: KW_ONLY
    tool_call_id: str
    input: dict[str, Any]
    step_number: int


@dataclass(frozen=True, slots=True)
class ToolDecision:
    """What `before_tool_call` decides.

    Attributes:
        action: `allow` runs the tool, `block` does not and tells the model why, `substitute` does not and
            gives the model `output` as the result.
        input: For `allow`: run it with these arguments instead. They are not validated again.
        reason: For `block`: what the model is told; default a text which says that the call was blocked.
        output: For `substitute`: the result, anything that can be written as JSON.

    >>> ToolDecision("block", reason="not on Sundays").reason
    'not on Sundays'
    """

    action: Literal["allow", "block", "substitute"] = "allow"
    _: KW_ONLY
    input: dict[str, Any] | None = None
    reason: str | None = None
    output: Any = None


@dataclass(frozen=True, slots=True)
class ToolOutcome(ToolCall):
    """What became of a call.

    Attributes:
        success: False when the tool, its result or `before_tool_call` failed. A blocked or substituted call
            is a success.
        output: What the tool returned, or was decided instead; None on failure.
        error: What was raised, None on success.
        duration_ms: Milliseconds from the decision about the call to its outcome.
    """

    success: bool
    output: Any = None
    error: Exception | None = None
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A finished step: one model request and the tools it asked for.

    Attributes:
        step_number: From 0.
        text: What the model said.
        reasoning: What it showed of its reasoning.
        tool_calls: What it asked for.
        tool_results: What became of it, in the order of completion; without calls that did not get as far as
            the tool (unknown tool, arguments that do not fit it).
        finish_reason: Why the model stopped: `stop`, `length`, `tool_call`, `content_filter`, `error`; None
            when it did not say.
        usage: Tokens of this step, named like those of the turn: `inputTokens` and so on.
    """

    step_number: int
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    tool_results: tuple[ToolOutcome, ...]
    finish_reason: str | None
    usage: dict[str, Any] = field(default_factory=dict)


StopWhen = Callable[[Sequence[StepResult]], Any]
"""A condition on the finished steps; a plain function or a coroutine function that tells true or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What `before_step` is told.

    Attributes:
        steps: The finished steps of this turn.
        step_number: Of the step that is to begin, from 0.
        model: The model that will be asked (pydantic-ai `Model`).
        messages: What it will be sent (pydantic-ai `ModelMessage`).
    """

    steps: tuple[StepResult, ...]
    step_number: int
    model: Any
    messages: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """What `before_step` wants different, for this step only; what is None stays as it is.

    Attributes:
        model: A name or a model.
        system: The system prompt; empty for none.
        messages: What the model is sent (pydantic-ai `ModelMessage`), the last one a request.
        active_tools: Names of the only tools that the model sees and may call.
        tool_choice: `auto`, `none`, `required`, or names of which one must be called.
        settings: Model settings (pydantic-ai `ModelSettings`), merged over those of the turn.
    """

    model: Any = None
    system: str | None = None
    messages: Sequence[Any] | None = None
    active_tools: Sequence[str] | None = None
    tool_choice: Any = None
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkContext:
    """What `on_chunk` is told.

    Attributes:
        chunk: What arrived from the model (pydantic-ai `PartStartEvent`, `PartDeltaEvent` or `PartEndEvent`).
        step_number: The step it belongs to, from 0.
    """

    chunk: Any
    step_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """What `on_chat_error` is told besides the error.

    Attributes:
        request_id: The turn that failed.
        stage: `turn` when it could not be prepared (model, prompt, tools, `before_turn`), else `stream`.
        messages_persisted: True when the messages that asked for the turn are part of the conversation.
    """

    request_id: str
    stage: Literal["turn", "stream"]
    messages_persisted: bool
