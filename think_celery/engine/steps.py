"""The model-and-tools loop of one turn, on pydantic-ai."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.usage import RunUsage, UsageLimits

from think_celery.agent import Think
from think_celery.core.failure import describe
from think_celery.core.turn import Chunk, Turn
from think_celery.engine.chunks import ChunkStream
from think_celery.engine.model import ModelPolicy, UsageSink
from think_celery.engine.plan import make_plan
from think_celery.engine.provider import explain
from think_celery.engine.step_hooks import StepHooks
from think_celery.engine.usage import counts
from think_celery.errors import TurnSetupError


async def run_steps(
    agent: Think, turn: Turn, usage: UsageSink, policy: ModelPolicy
) -> AsyncGenerator[Chunk, None]:
    """Run the loop; see `engine.model.run_model`."""
    spent = RunUsage()
    try:
        steps, runner = await _prepare(agent, turn, policy)
    except Exception as error:
        raise TurnSetupError(describe(error)) from error
    try:
        async with runner.run_stream_events(
            message_history=steps.plan.history,
            deps=agent,
            metadata=turn.metadata,
            usage=spent,
            usage_limits=UsageLimits(request_limit=None),  # `steps` counts
            infer_name=False,
        ) as events:
            stream = ChunkStream(sdk_version=6, steps=steps)
            async with aclosing(stream.chunks(events)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
    except ModelAPIError as error:
        explain(error)
        raise
    except Exception as error:
        if steps.has_begun:
            raise
        raise TurnSetupError(describe(error)) from error
    finally:
        usage.record(counts(spent))


async def _prepare(agent: Think, turn: Turn, policy: ModelPolicy) -> tuple[StepHooks, Agent[Think, Any]]:
    plan = await make_plan(agent, turn)
    steps = StepHooks(agent, plan, policy)
    runner = Agent(
        plan.model,
        instructions=plan.system or None,
        # None: a model that has nothing to say is not asked again.
        output_type=[str, type(None)] if plan.output_type is None else plan.output_type,
        toolsets=plan.toolsets,
        model_settings=plan.settings,
        deps_type=Think,
        # A model that keeps calling a tool wrongly is stopped by `max_steps`, like any other.
        retries=plan.max_steps,
        capabilities=[steps],
        name=agent.type_name,
    )
    return steps, runner
