"""The hooks of a turn, and its bounds, as one capability of the model library."""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from pydantic_ai import CallToolsNode, ModelRequestNode, RetryModelRequest, RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability, WrapToolExecuteHandler
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.messages import (
    AgentStreamEvent,
    InstructionPart,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.result import FinalResult
from pydantic_ai.tools import ToolDefinition
from pydantic_graph import End

from think_celery.agent import Think
from think_celery.core.hook import (
    ChunkContext,
    StepConfig,
    StepContext,
    StepResult,
    ToolCall,
    ToolDecision,
    ToolOutcome,
)
from think_celery.engine import hooks
from think_celery.engine.model import ModelPolicy
from think_celery.engine.plan import Plan, settings_of
from think_celery.engine.provider import limited, pause_seconds, resolve
from think_celery.engine.tools import sendable
from think_celery.engine.usage import counts

log = logging.getLogger(__name__)
_BLOCKED = "The call was blocked by the application."
_UNDECIDED = (CallDeferred, ApprovalRequired, SkipToolExecution)
_TOLD = (ModelRetry, ToolRetryError, ToolFailed, ToolFailedError)
"""What the model library tells the model by itself."""


@dataclass
class StepHooks(AbstractCapability[Think]):
    """Calls the agent's hooks during one run of its model, and ends the run at its bounds.

    Attributes:
        has_begun: True once something was sent to the model; before that a failure is one of the set-up.
        is_stopped: True when the run ended at a bound, though the model wanted to go on.
        internal_tools: Names of tools that only carry a structured answer.
    """

    agent: Think = field(kw_only=False)
    plan: Plan = field(kw_only=False)
    policy: ModelPolicy = field(kw_only=False)
    has_begun: bool = field(default=False, init=False)
    is_stopped: bool = field(default=False, init=False)
    internal_tools: set[str] = field(default_factory=set, init=False)
    _steps: list[StepResult] = field(default_factory=list, init=False)
    _outcomes: list[ToolOutcome] = field(default_factory=list, init=False)
    _step: StepConfig = field(default_factory=StepConfig, init=False)

    async def before_node_run(self, ctx: RunContext[Think], *, node: Any) -> Any:
        """Ask `before_step` early, because the tools of a step are gathered before its request is made."""
        if isinstance(node, ModelRequestNode):
            self._outcomes = []
            self._step = StepConfig()
            context = StepContext(
                steps=tuple(self._steps),
                step_number=len(self._steps),
                model=ctx.model,
                messages=[*ctx.messages, node.request],
            )
            try:
                self._step = await hooks.ask(self.agent, "before_step", StepConfig, context) or self._step
            except Exception:
                self.has_begun = True  # the turn was prepared
                raise
        return node

    async def prepare_tools(
        self, ctx: RunContext[Think], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Leave only the active tools; the others can neither be seen nor called."""
        active = self.plan.active_tools if self._step.active_tools is None else self._step.active_tools
        return tool_defs if active is None else [tool for tool in tool_defs if tool.name in active]

    async def before_model_request(
        self, ctx: RunContext[Think], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Change the request as `before_step` said."""
        self.has_begun = True
        parameters = request_context.model_request_parameters
        self.internal_tools.update(tool.name for tool in parameters.output_tools)
        step = self._step
        if step.model is not None:
            request_context.model = await resolve(step.model)
            request_context.model_id = None
        if step.messages is not None:
            request_context.messages = list(step.messages)
        if step.system is not None:
            instructions = [InstructionPart(step.system)] if step.system else []
            request_context.model_request_parameters = replace(parameters, instruction_parts=instructions)
        request_context.model_settings = settings_of(
            request_context.model_settings, step.settings, step.tool_choice
        )
        return request_context

    async def prepare_model_request(
        self, ctx: RunContext[Think], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Leave repeating to us: a provider's own package would repeat each of our tries."""
        if "max_retries" not in request_context.model.unsupported_settings:
            settings = request_context.model_settings or {}
            request_context.model_settings = {"max_retries": 0, **settings}
        return request_context

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Keep to the number of calls at once."""
        return limited(model, self.policy)

    async def on_model_request_error(
        self, ctx: RunContext[Think], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Send a request again that was refused for the moment; nothing of its answer was streamed yet."""
        attempt, model = request_context.attempt, request_context.model.model_id
        pause = pause_seconds(error, attempt=attempt, key=str(ctx.run_id), policy=self.policy)
        if pause is None:
            raise error
        kind = type(error).__name__  # its text may quote the conversation
        log.warning("model.refused model=%s attempt=%d pause=%.1f error=%s", model, attempt, pause, kind)
        await asyncio.sleep(pause)
        raise RetryModelRequest from error

    def listens_to(self, event: AgentStreamEvent) -> bool:
        """Hear what the model streams, and only when somebody wants to know."""
        if not isinstance(event, PartStartEvent | PartDeltaEvent | PartEndEvent):
            return False
        return hooks.overrides(type(self.agent), "on_chunk")

    async def on_event(self, ctx: RunContext[Think], *, event: AgentStreamEvent) -> None:
        """Tell `on_chunk`."""
        chunk = ChunkContext(chunk=event, step_number=len(self._steps))
        await hooks.tell(self.agent, "on_chunk", chunk)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Think],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Let the hooks decide about a call, and tell them and the model what became of it.

        What a tool or `before_tool_call` raises is told to the model instead of failing the turn.
        """
        asked = ToolCall(
            call.tool_name,
            tool_call_id=call.tool_call_id,
            input=call.args_as_dict(),
            step_number=len(self._steps),
        )
        started = time.monotonic()
        try:
            result = await self._decided(asked, args, handler)
        except _UNDECIDED:
            raise
        except _TOLD as error:
            await self._finish_call(asked, started, error=error)
            raise
        except Exception as error:
            log.exception("tool.failed tool=%s", call.tool_name)
            await self._finish_call(asked, started, error=error)
            raise ToolFailed(f"{type(error).__name__}: {error}") from error
        output = result.return_value if isinstance(result, ToolReturn) else result
        await self._finish_call(asked, started, output=output)
        return result

    async def _decided(self, asked: ToolCall, args: dict[str, Any], handler: WrapToolExecuteHandler) -> Any:
        decision = await hooks.ask(self.agent, "before_tool_call", ToolDecision, asked) or ToolDecision()
        match decision.action:
            case "allow":
                return sendable(await handler(args if decision.input is None else decision.input))
            case "block":
                return decision.reason or _BLOCKED
            case "substitute":
                return sendable(decision.output)
        assert_never(decision.action)

    async def _finish_call(
        self, asked: ToolCall, started: float, *, output: Any = None, error: Exception | None = None
    ) -> None:
        outcome = ToolOutcome(
            asked.tool_name,
            tool_call_id=asked.tool_call_id,
            input=asked.input,
            step_number=asked.step_number,
            success=error is None,
            output=output,
            error=error,
            duration_ms=(time.monotonic() - started) * 1000,
        )
        self._outcomes.append(outcome)
        await hooks.tell(self.agent, "after_tool_call", outcome)

    async def after_node_run(self, ctx: RunContext[Think], *, node: Any, result: Any) -> Any:
        """Tell `on_step_finish` of a finished step, and end the run after it when a bound is reached."""
        if not isinstance(node, CallToolsNode):
            return result
        step = self._finished(node.model_response)
        self._steps.append(step)
        await hooks.tell(self.agent, "on_step_finish", step)
        if isinstance(result, End) or not await self._is_enough():
            return result
        self.is_stopped = True
        return End(FinalResult(None))

    def _finished(self, response: ModelResponse) -> StepResult:
        number = len(self._steps)
        return StepResult(
            step_number=number,
            text=response.text or "",
            reasoning=response.thinking or "",
            tool_calls=tuple(
                ToolCall(
                    call.tool_name,
                    tool_call_id=call.tool_call_id,
                    input=call.args_as_dict(),
                    step_number=number,
                )
                for call in response.tool_calls
            ),
            tool_results=tuple(self._outcomes),
            finish_reason=response.finish_reason,
            usage=counts(response.usage),
        )

    async def _is_enough(self) -> bool:
        if len(self._steps) >= self.plan.max_steps:
            return True
        for condition in self.plan.stop_when:
            if await hooks.call(condition, tuple(self._steps)):
                return True
        return False
