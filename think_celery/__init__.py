"""A durable, ordered, cancellable, streamable queue of LLM-agent turns on Celery.

Derive an agent from `Think`, hand it messages with `submit_messages`, and inspect, list, wait for or stream
what it does. See the README for ten lines that run.
"""

from typing import TYPE_CHECKING, Any

from think_celery import agent as _agent
from think_celery.abort import AbortController, AbortSignal
from think_celery.agent import Think
from think_celery.aio import AsyncAgentHandle
from think_celery.core.address import Address as _Address
from think_celery.core.callback import ChatStart, StreamCallback
from think_celery.core.cron import cron
from think_celery.core.frame import StreamEvent
from think_celery.core.hook import (
    ChunkContext,
    ErrorContext,
    StepConfig,
    StepContext,
    StepResult,
    ToolCall,
    ToolDecision,
    ToolOutcome,
    TurnConfig,
    TurnContext,
)
from think_celery.core.message import UIMessage, message_text
from think_celery.core.submission import Kind, Receipt, Status, Submission
from think_celery.core.task import Retry, ScheduleContext, ScheduledTask
from think_celery.core.turn import ChatResponse, Turn, TurnResult
from think_celery.engine import runtime as _runtime
from think_celery.errors import (
    AbortError,
    CallerError,
    IdentityConflict,
    InvalidInput,
    InvalidSchedule,
    InvalidSettings,
    LedgerUnavailable,
    NestedTurnError,
    ServiceError,
    StackNotRunning,
    StateConflict,
    ThinkError,
    TurnSetupError,
)
from think_celery.handle import AgentHandle
from think_celery.messages import user_message
from think_celery.settings import Settings, load_settings

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "AbortController",
    "AbortError",
    "AbortSignal",
    "AgentHandle",
    "AsyncAgentHandle",
    "CallerError",
    "ChatResponse",
    "ChatStart",
    "ChunkContext",
    "ErrorContext",
    "IdentityConflict",
    "InvalidInput",
    "InvalidSchedule",
    "InvalidSettings",
    "Kind",
    "LedgerUnavailable",
    "NestedTurnError",
    "Receipt",
    "Retry",
    "ScheduleContext",
    "ScheduledTask",
    "ServiceError",
    "Settings",
    "StackNotRunning",
    "StateConflict",
    "Status",
    "StepConfig",
    "StepContext",
    "StepResult",
    "StreamCallback",
    "StreamEvent",
    "Submission",
    "Think",
    "ThinkError",
    "ToolCall",
    "ToolDecision",
    "ToolOutcome",
    "Turn",
    "TurnConfig",
    "TurnContext",
    "TurnResult",
    "TurnSetupError",
    "UIMessage",
    "cron",
    "install",
    "load_settings",
    "message_text",
    "user_message",
]


def install(app: "Celery", settings: Settings | None = None) -> "Celery":
    """Add think-celery to a Celery app that you already have; see `think_celery.worker.app.install`."""
    from think_celery.worker.app import install as install_into

    return install_into(app, settings)


def _publisher(settings: Settings) -> Any:
    from think_celery.worker.app import default_publisher  # Celery is loaded when the first bell rings

    return default_publisher(settings)


def _blocking(address: _Address) -> AgentHandle:
    return AgentHandle(address.type_name, address.name)


def _awaitable(address: _Address, runtime: _runtime.Runtime | None) -> AsyncAgentHandle:
    return AsyncAgentHandle(address.type_name, address.name, runtime=runtime)


_agent.bind_handles(blocking=_blocking, awaitable=_awaitable)
_runtime.bind(_publisher)
