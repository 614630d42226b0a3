"""What an agent is given for one turn, and what observers may read of it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from think_celery.core.message import message_text
from think_celery.core.record import Record
from think_celery.core.submission import Kind, Submission

Chunk = dict[str, Any]
"""One UI message chunk of the AI SDK, as a JSON object."""


@dataclass(frozen=True)
class Turn:
    """One attempt at answering the messages of one submission.

    Attributes:
        submission: The row as it stood when the attempt began.
        read: Reads the conversation; see `messages`.
        new_messages: The messages that this submission brought.
        attempt: Number of this start, from 1; above 1 an earlier one was interrupted.
        metadata: The submission's metadata, None when it was accepted without.
        body: What came with the request for the application's own use, any JSON value; a continuation without
            one has the body that the agent was given last. None when there is none.
        continuation: True when the assistant goes on after its own last message.
        run_model: Runs the agent's model and tools over `messages` and yields UI message chunks.
    """

    submission: Submission
    read: Callable[[], list[dict[str, Any]]]
    new_messages: list[dict[str, Any]]
    attempt: int
    metadata: dict[str, Any] | None
    # `Any` stands for the agent: core knows no agent class.
    run_model: Callable[[Any], AsyncIterator[Chunk]]
    body: Any = None
    continuation: bool = False

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in order, the new messages included, as JSON objects (AI SDK `UIMessage`).

        Read when first asked for: a long conversation takes its time.
        """
        return self.read()

    @property
    def text(self) -> str:
        """The text of the last user message, empty when there is none."""
        last = _last_user(self.new_messages) or _last_user(self.messages)
        return message_text(last or {})


def _last_user(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((message for message in reversed(messages) if message.get("role") == "user"), None)


@dataclass(frozen=True, slots=True)
class TurnView:
    """What the ledger says of a turn, for a reader whose stream went silent.

    Attributes:
        status: The submission's status.
        attempt: Starts so far.
        error: Failure text or reason, None when there is none.
        message_id: The assistant message that the turn wrote last, None when it wrote none.
        message: That message as stored, None when it was not asked for or does not exist.
    """

    status: str
    attempt: int
    error: str | None = None
    message_id: str | None = None
    message: dict[str, Any] | None = None


class TurnResult(Record):
    """How a turn ended for whoever waited for it; see `text` and `message` for what was said."""

    request_id: str
    """Names the turn: for `cancel_chat`, `stream` and `inspect_submission`. Empty when there was none."""
    status: Literal["completed", "error", "aborted", "skipped", "interrupted", "pending", "running"]
    """`interrupted`: its worker died, and what becomes of the turn is not told here. `pending` and `running`:
    the caller's time was up."""
    error: str | None = None
    """Failure text of `error`, reason of `aborted` or `skipped`."""
    message_id: str | None = None
    """The assistant message that the turn wrote, None when it wrote none."""
    message: dict[str, Any] | None = None
    """That message as a JSON object (AI SDK `UIMessage`)."""
    output: Any = None
    """The structured answer as JSON, when the agent's class asks for one (`output_type`)."""
    continuation: bool = False

    @property
    def text(self) -> str:
        """What the assistant said, empty when it said nothing."""
        return message_text(self.message or {})


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """What `on_chat_response` is told of a turn that ended.

    Attributes:
        submission: The row in its terminal state.
        message: The assistant message, whole even where the stored one was shortened for its size; None when
            the turn said nothing.
    """

    submission: Submission
    message: dict[str, Any] | None

    @property
    def continuation(self) -> bool:
        """True when the assistant went on after its own last message."""
        return self.submission.kind is Kind.CONTINUE

    @property
    def request_id(self) -> str:
        """The turn's request id."""
        return self.submission.request_id

    @property
    def status(self) -> str:
        """`completed`, `error`, `aborted` or `skipped`."""
        return self.submission.status.value

    @property
    def error(self) -> str | None:
        """Failure text, None when there is none."""
        return self.submission.error
