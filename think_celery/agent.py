"""The class that applications derive from, and the registry that finds such a class by its name.

Importing this module is cheap: the model library is loaded by the engine, when the first turn runs.
"""

import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union

from think_celery.core.address import Address, check_type_name
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
from think_celery.core.submission import Submission
from think_celery.core.turn import ChatResponse, Turn
from think_celery.errors import DuplicateAgentType, InvalidSettings, ThinkError, UnknownAgentType

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from think_celery.aio import AsyncAgentHandle as _Names
    from think_celery.core.task import ScheduleContext, ScheduledTask
else:
    _Names = object

T = TypeVar("T")
Answer = Union[T, Awaitable[T]]  # noqa: UP007 - mypy takes no other spelling
"""What a hook returns that may be a plain function or a coroutine function."""


class Registry:
    """Agent classes by type name."""

    def __init__(self) -> None:
        self._types: dict[str, type[Think]] = {}

    def add(self, agent: type["Think"]) -> None:
        """Register a class; the same class defined again (a reloaded module) replaces itself.

        Raises:
            DuplicateAgentType: Another class has that type name.
        """
        known = self._types.get(agent.type_name)
        if known is not None and _origin(known) != _origin(agent):
            raise DuplicateAgentType(agent.type_name, _path(known), _path(agent))
        self._types[agent.type_name] = agent

    def get(self, type_name: str) -> type["Think"]:
        """Return the class of a type name.

        Raises:
            UnknownAgentType: No module that defines one has been imported.
        """
        try:
            return self._types[type_name]
        except KeyError:
            raise UnknownAgentType(type_name, self.known()) from None

    def __contains__(self, type_name: str) -> bool:
        return type_name in self._types

    def known(self) -> list[str]:
        """Return the registered type names in alphabetical order."""
        return sorted(self._types)

    def load(self, modules: Iterable[str]) -> None:
        """Import modules for the agent classes that they define.

        Raises:
            InvalidSettings: A module cannot be imported; names it and the cause.
        """
        for module in modules:
            try:
                importlib.import_module(module)
            except ThinkError:
                raise
            except (Exception, SystemExit) as error:
                cause = f"{type(error).__name__}: {error}"
                raise InvalidSettings(f"the agent module {module!r} cannot be imported ({cause})") from error


def _path(agent: type["Think"]) -> str:
    return f"{agent.__module__}.{agent.__qualname__}"


def _origin(agent: type["Think"]) -> tuple[str, str]:
    # The file, not the module: a script run as `__main__` may be imported again under its own name.
    module = sys.modules.get(agent.__module__)
    return getattr(module, "__file__", None) or agent.__module__, agent.__qualname__


registry = Registry()
"""The classes of this process."""

_factories: dict[str, Callable[..., Any]] = {}


def bind_handles(*, blocking: Callable[[Address], Any], awaitable: Callable[..., Any]) -> None:
    """Say what `handle` and `async_handle` build; called once, by the package itself.

    The handles drive the engine and the engine drives agents, so this module cannot import them.
    """
    _factories.update(blocking=blocking, awaitable=awaitable)


class Think(_Names):
    """An agent: derive from it, override what you need, and talk to one conversation through a handle.

    Deriving registers the class under its name. A new object is made for every turn, so attributes do not
    survive a turn; the conversation does. Inside, an agent has the names of `AsyncAgentHandle` for itself:
    `await self.submit_messages(…)`, `await self.sub_agent(ChildAgent, "child-1")` and, in `on_chat_response`,
    `await self.save_messages(…)`.

    Attributes:
        type_name: Name in queues and tables; default the class's own name. Keep it when you rename the class.
        max_steps: Model requests in one turn at most; reaching the bound ends the turn normally.
        send_reasoning: False leaves the model's reasoning out of the stream and the stored message.
        model_settings: For every request (pydantic-ai `ModelSettings`), such as `{"temperature": 0.2}`.
        output_type: What the answer is to be instead of text: a pydantic model, dataclass or other type, or
            one of pydantic-ai's output markers. The checked result is streamed and stored as a `data-output`
            part once it is complete; `[Report, str]` leaves the choice to the model.
        scheduled_tasks_scope: `all` lets sub-agents of this class come due, too; with `root` they never do.
        name: Which conversation this is.
        address: Type and name together.

    >>> class Greeter(Think, abstract=True):
    ...     def get_model(self):
    ...         return "openai:gpt-5"
    >>> Greeter(Address("Greeter", "alice")).name
    'alice'
    """

    type_name: ClassVar[str] = "Think"
    max_steps: int = 10
    send_reasoning: bool = True
    model_settings: "ModelSettings | None" = None
    output_type: Any = None
    scheduled_tasks_scope: Literal["root", "all"] = "root"

    def __init_subclass__(cls, *, abstract: bool = False, **options: Any) -> None:
        """Register the class.

        Args:
            abstract: True for a base of other agents, which is not an agent itself.
        """
        super().__init_subclass__(**options)
        cls.type_name = check_type_name(cls.__dict__.get("type_name", cls.__name__))
        if not abstract:
            registry.add(cls)

    def __init__(self, address: Address) -> None:
        self.address = address
        self.name = address.name

    def __getattr__(self, name: str) -> Any:
        # An agent speaks to itself as others do: `self.save_messages` is that of its own awaitable handle.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(_factories["awaitable"](self.address, self.__dict__.get("_runtime")), name)

    @classmethod
    def handle(cls, name: str) -> Any:
        """Return the blocking handle (`AgentHandle`) of one conversation; does nothing else yet.

        Raises:
            InvalidInput: The name cannot be accepted (1 to 200 characters, no control characters).
        """
        return _factories["blocking"](Address(cls.type_name, name))

    @classmethod
    def async_handle(cls, name: str) -> Any:
        """Return the awaitable handle (`AsyncAgentHandle`) of one conversation; does nothing else yet.

        Raises:
            InvalidInput: The name cannot be accepted (1 to 200 characters, no control characters).
        """
        return _factories["awaitable"](Address(cls.type_name, name), None)

    def get_model(self) -> "Model | str":
        """Return the model: a name such as `openai:gpt-5`, or any pydantic-ai model.

        Raises:
            NotImplementedError: Not overridden; the turn ends in `error` with this text.
        """
        raise NotImplementedError(
            f'{type(self).__name__} has no model: override get_model(), for example `return "openai:gpt-5"`'
        )

    def get_system_prompt(self) -> str:
        """Return what the model is told before the conversation; blank for nothing."""
        return "You are a helpful assistant."

    def get_tools(self) -> list[Any]:
        """Return what the model may call: functions, pydantic-ai `Tool`s and toolsets; asked every turn.

        A tool that takes a `RunContext` finds this agent in its `deps`, with what `before_turn` put on it,
        and the submission's metadata in its `metadata`. Functions that are not `async` run in threads. What
        a tool raises is told to the model and does not fail the turn. A toolset (an MCP server) is opened
        before the first request of a turn and closed at its end; one object shared by several turns stays
        open as long as one of them uses it, if it counts its users as pydantic-ai's do.
        """
        return []

    def before_turn(self, context: TurnContext) -> Answer[TurnConfig | None]:
        """Called when a turn is prepared, before the first model request; changes nothing by default (T 5).

        Raising ends the turn in `error`; nothing is streamed. Like every hook it may be a coroutine function;
        one that is not runs in a thread. It is called for each `run_model` of a turn.

        Returns:
            What is different for this turn, None for nothing.
        """
        return None

    def before_step(self, context: StepContext) -> Answer[StepConfig | None]:
        """Called before each model request; changes nothing by default (T 5).

        Raising ends the turn in `error`; what was said so far is kept.

        Returns:
            What is different for this step, None for nothing.
        """
        return None

    def before_tool_call(self, call: ToolCall) -> Answer[ToolDecision | None]:
        """Called before a tool runs, its arguments checked; allows it by default (T 5).

        Calls of one step run side by side, and so does this. Raising fails the call: the model is told, and
        the turn goes on.

        Returns:
            Whether it runs, with which arguments, or what is the result instead; None lets it run.
        """
        return None

    def after_tool_call(self, outcome: ToolOutcome) -> Answer[None]:
        """Called when the outcome of a call is known; does nothing by default. Raising is logged (T 5)."""

    def on_step_finish(self, step: StepResult) -> Answer[None]:
        """Called when a step's tools have their outcomes; does nothing by default. Raising is logged (T 5).

        A step whose request fails or is cancelled is not finished.
        """

    def on_chunk(self, chunk: ChunkContext) -> Answer[None]:
        """Called for everything the model streams; does nothing by default. Raising is logged (T 5).

        The model's stream waits for it, so be quick.
        """

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> Answer[dict[str, Any] | None]:
        """Called when a turn is prepared, for each earlier tool call that never got its result (T 4.7).

        It says what the model is shown in its place; the stored message stays. Raising ends the turn in
        `error`.

        Args:
            part: The call (AI SDK tool part) with an input that is an object; it ends in an error that says
                it was interrupted.

        Returns:
            A part of the call with a result, such as `{**part, "state": "output-available", "output": …}`, or
            a text part; None for the part as it is.
        """
        return None

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        """Answer a turn; by default the model does, with the tools.

        Args:
            turn: The conversation, the new messages, and `run_model`.

        Yields:
            Text, or UI message chunks of the AI SDK as JSON objects.
        """
        async with aclosing(turn.run_model(self)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk

    def on_submission_status(self, submission: Submission) -> Answer[None]:
        """Called when a submission is accepted, starts, and ends; does nothing by default (S 7).

        It runs in the process that made the step if that has the class, else in a worker. Acceptance, start
        and the end of a wait wait for it, `hook_seconds` at most. The end is told at least once, also over a
        crash: use `submission_id` and `status` to recognise a repetition. Raising is logged and harms nobody.

        Args:
            submission: The row as it was at that step.
        """

    def get_scheduled_tasks(self) -> "Answer[Mapping[str, ScheduledTask]]":
        """Return what this agent does again and again, by task id; nothing by default (C 1.1).

        It is asked when the agent is first used in a process, when declarations are compared, and for every
        occurrence: what runs is always the code of now. Raising leaves everything as it was.
        """
        return {}

    def get_default_timezone(self) -> Answer[str | None]:
        """Return the time zone of tasks that name none, such as `Europe/London`; None by default (C 1.1)."""
        return None

    @classmethod
    def scheduled_agents(cls) -> Answer[Iterable[str] | None]:
        """Return the names of the agents of this class that have scheduled tasks; asked of the class.

        Returns:
            None, the default, for every agent; and for one named `default` while there is no other.
        """
        return None

    def on_schedule_error(self, error: Exception, occurrence: "ScheduleContext") -> Answer[None]:
        """Called when an occurrence has failed for good; does nothing by default. Raising is logged (C 2.4).

        Args:
            error: What its prompt function or handler raised last.
            occurrence: Which one it was.
        """

    def on_chat_response(self, response: ChatResponse) -> Answer[None]:
        """Called when a turn that has begun to answer has ended; does nothing by default (T 1.9).

        The message is stored and the lane is free: the next turn may run meanwhile, and this may wait for
        further turns, also of its own agent. One agent's calls come in the order of its turns and never
        overlap. A turn is told of once; again only when a worker dies in the middle, so use `request_id` to
        recognise a repetition. A reset, a clear and the deletion of the record take back what was not told
        yet. Raising is logged and harms nobody.
        """

    def on_chat_error(self, error: Exception, context: ErrorContext) -> Answer[Exception | None]:
        """Called once when a turn fails; does nothing by default. Raising is logged (T 5).

        Args:
            error: What was raised. When the turn could not be prepared it is a `TurnSetupError`, whose cause
                is the original.
            context: Where it happened.

        Returns:
            The error that people are to see instead, None to keep this one.
        """
        return None
