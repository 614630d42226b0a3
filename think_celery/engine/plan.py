"""What one run of the model is to do: what the class says, and what its `before_turn` changes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset

from think_celery.agent import Think
from think_celery.core.hook import StopWhen, TurnConfig, TurnContext
from think_celery.core.turn import Turn
from think_celery.engine import hooks
from think_celery.engine.blocking import in_thread
from think_celery.engine.history import load_history, repair
from think_celery.engine.provider import resolve
from think_celery.engine.tools import toolsets


@dataclass(frozen=True, slots=True)
class Plan:
    """How to answer one turn; see `Think` and `TurnConfig` for the meaning of each field."""

    model: Model
    system: str
    toolsets: list[AbstractToolset[Think]]
    history: list[ModelMessage]
    settings: ModelSettings
    active_tools: frozenset[str] | None
    max_steps: int
    stop_when: tuple[StopWhen, ...]
    send_reasoning: bool
    output_type: Any


async def make_plan(agent: Think, turn: Turn) -> Plan:
    """Ask the agent what to do.

    Raises:
        Exception: Whatever the agent raised, a name that is no model, something that is no tool, a
            conversation with nothing to send.
    """
    # In a thread, because they are the application's and may block, and a long conversation takes its time.
    *answers, stored = await in_thread(_ask, agent, turn)
    model, system, tools = [await _value(answer) for answer in answers]
    messages = await repair(agent, stored)
    context = TurnContext(
        system=system or "",
        messages=messages,
        tools=list(tools),
        model=model,
        continuation=turn.continuation,
        body=turn.body,
        metadata=turn.metadata,
        submission=turn.submission,
    )
    config = await hooks.ask(agent, "before_turn", TurnConfig, context) or TurnConfig()
    return Plan(
        model=await resolve(model if config.model is None else config.model),
        system=context.system if config.system is None else config.system,
        toolsets=toolsets(tools, config.tools),
        history=await in_thread(load_history, messages if config.messages is None else config.messages),
        settings=settings_of(agent.model_settings, config.settings, config.tool_choice),
        active_tools=None if config.active_tools is None else frozenset(config.active_tools),
        max_steps=_bound(agent.max_steps if config.max_steps is None else config.max_steps),
        stop_when=_conditions(config.stop_when),
        send_reasoning=agent.send_reasoning if config.send_reasoning is None else config.send_reasoning,
        output_type=agent.output_type if config.output_type is None else config.output_type,
    )


def settings_of(known: Any, changed: Any, tool_choice: Any) -> ModelSettings:
    """Return model settings with what a hook changes; None changes nothing."""
    chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
    return ModelSettings(**{**(known or {}), **(changed or {}), **chosen})  # type: ignore[typeddict-item]


def _ask(agent: Think, turn: Turn) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
    return agent.get_model(), agent.get_system_prompt(), agent.get_tools(), turn.messages


async def _value(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _bound(max_steps: int) -> int:
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}; a turn has at least one step")
    return max_steps


def _conditions(stop_when: StopWhen | Sequence[StopWhen]) -> tuple[StopWhen, ...]:
    return tuple(stop_when) if isinstance(stop_when, Sequence) else (stop_when,)
