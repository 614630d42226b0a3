"""Every error that think-celery raises on purpose, split by who must act.

    ThinkError
    ├── CallerError            the call is wrong; nothing was written; change the call
    │   ├── InvalidInput       a value is not acceptable; names the field and the remedy
    │   ├── InvalidSchedule    a scheduled task cannot be used as it is declared; says why by a code
    │   ├── IdentityConflict   submission id and idempotency key name different submissions
    │   ├── UnknownAgentType   no agent class is registered under that name
    │   ├── DuplicateAgentType two classes claim one type name
    │   ├── WrongContext       a blocking call inside an event loop, or a call that only a worker can serve
    │   │   └── NestedTurnError  a turn would wait for itself, directly or through other agents
    │   ├── PayloadMismatch    a known id or key came with other messages, in strict mode
    │   └── InvalidSettings    a THINK_… setting is unknown or unreadable
    ├── StateConflict          the row moved first; look again and decide
    │   ├── AgentBusy          the agent has work and the call was to be refused then
    │   ├── OccurrenceOpen     a scheduled handler runs already, and never runs twice at once
    │   └── LaneFull           too many submissions of the agent wait
    ├── AbortError             an abort signal was aborted, and its holder asked to be told by an error
    ├── TurnSetupError         an agent's class could not prepare a turn; its messages are stored
    └── ServiceError           something outside failed; `retryable` says whether to try again
        ├── LedgerUnavailable  PostgreSQL cannot be reached
        ├── StreamUnavailable  Redis or Valkey cannot be reached
        ├── SchemaMismatch     the ledger's schema is missing or of another version
        ├── ProcessClosing     this process is closing its connections; waits and streams end
        └── StackNotRunning    no servers are configured and no local stack is running

Not found, already terminal and timed out are return values, never errors. Arguments are positional and
JSON-able, so an error survives a trip through Celery.
"""

from typing import Any, Literal


class ThinkError(Exception):
    """Root of every error raised by think-celery."""


class CallerError(ThinkError):
    """The call is wrong and nothing was written."""


class InvalidInput(CallerError, ValueError):
    """A value cannot be accepted.

    Args:
        field: Dotted path of the value, such as `messages[0].parts[1].text`.
        problem: What is wrong and what to do instead, one sentence.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


ScheduleFault = Literal[
    "TIMEZONE_INVALID",
    "TIMEZONE_MISMATCH",
    "TIMEZONE_REQUIRED",
    "TASK_ID_INVALID",
    "TASK_INVALID",
    "INTERVAL_TIMEZONE",
    "UNIT_SINGULAR",
    "UNIT_PLURAL",
    "DAY_INVALID",
    "DAY_DUPLICATE",
    "TIME_INVALID",
    "CRON_INVALID",
    "UNSUPPORTED",
    "ACTION_INVALID",
    "RETRY_INVALID",
    "POLICY_INVALID",
    "METADATA_INVALID",
]
"""Why a scheduled task cannot be used (C 1.5); the set is closed."""


class InvalidSchedule(CallerError, ValueError):
    """A scheduled task cannot be used as it is declared; other tasks are not affected.

    Args:
        code: One of `ScheduleFault`, for programs.
        problem: What is wrong, for people.
    """

    def __init__(self, code: ScheduleFault, problem: str) -> None:
        super().__init__(code, problem)
        self.code = code
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class IdentityConflict(CallerError):
    """`submission_id` and `idempotency_key` do not name one submission (S 8)."""

    def __init__(self, submission_id: str | None, idempotency_key: str | None, problem: str) -> None:
        super().__init__(submission_id, idempotency_key, problem)
        self.submission_id = submission_id
        self.idempotency_key = idempotency_key
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class UnknownAgentType(CallerError, LookupError):
    """No agent class of this process is registered under the type name."""

    def __init__(self, type_name: str, known: list[str]) -> None:
        super().__init__(type_name, known)
        self.type_name = type_name
        self.known = known

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"no agent class named {self.type_name!r} is loaded here (loaded: {known}); "
            "name its module in THINK_AGENTS, or check the spelling"
        )


class PayloadMismatch(CallerError):
    """A known id or key came with other messages, and THINK_STRICT_IDEMPOTENCY is on; nothing was written."""

    def __init__(self, submission_id: str) -> None:
        super().__init__(submission_id)
        self.submission_id = submission_id

    def __str__(self) -> str:
        return (
            f"submission {self.submission_id!r} was accepted with other messages; "
            "send the same ones, or use a new id and key"
        )


class DuplicateAgentType(CallerError):
    """Two agent classes claim the same type name."""

    def __init__(self, type_name: str, first: str, second: str) -> None:
        super().__init__(type_name, first, second)
        self.type_name = type_name
        self.first = first
        self.second = second

    def __str__(self) -> str:
        return (
            f"{self.first} and {self.second} are both named {self.type_name!r}; "
            "set a different `type_name` on one of them"
        )


class WrongContext(CallerError, RuntimeError):
    """The call would block or deadlock where it was made."""


class NestedTurnError(WrongContext):
    """A turn would wait for itself: the agent that is asked is one of those that wait for the answer.

    Args:
        chain: Addresses from the first agent to the one that was asked again.
    """

    def __init__(self, *chain: str) -> None:
        super().__init__(*chain)
        self.chain = chain

    def __str__(self) -> str:
        return (
            f"{' -> '.join(self.chain)}: the last of them runs a turn that waits for this one; "
            "use submit_messages or add_messages, which do not wait"
        )


class AbortError(ThinkError):
    """An abort signal was aborted.

    Args:
        reason: Why, in words; None when nobody said.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "aborted"


class TurnSetupError(ThinkError):
    """An agent could not prepare its turn: its model, prompt, tools or `before_turn` raised.

    The cause is chained. The turn's messages are part of the conversation.
    """


class InvalidSettings(CallerError):
    """A setting is unknown or its value cannot be read."""


class StateConflict(ThinkError):
    """The row changed before this call could act."""


class AgentBusy(StateConflict):
    """The agent runs or has waiting submissions, and `if_busy="reject"`; nothing was written."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self.agent = agent

    def __str__(self) -> str:
        return f'{self.agent} is busy and if_busy is "reject"; try later, or submit with "enqueue"'


class OccurrenceOpen(StateConflict):
    """The task is a handler, and one of its occurrences is due or runs; nothing was written."""

    def __init__(self, agent: str, task: str) -> None:
        super().__init__(agent, task)
        self.agent = agent
        self.task = task

    def __str__(self) -> str:
        return f"task {self.task!r} of {self.agent} is at work, and a handler never runs twice at once"


class LaneFull(StateConflict):
    """The agent has as many waiting submissions as the setting allows; nothing was written."""

    def __init__(self, agent: str, limit: int) -> None:
        super().__init__(agent, limit)
        self.agent = agent
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.agent} has {self.limit:,} waiting submissions, the most that THINK_MAX_PENDING allows; "
            "wait until it has worked some off"
        )


class ServiceError(ThinkError):
    """A service outside this process failed.

    Attributes:
        retryable: True when the same call may succeed later without any change.
    """

    retryable = True

    def __init__(self, message: str, *details: Any) -> None:
        super().__init__(message, *details)
        self.message = message

    def __str__(self) -> str:
        return self.message


class LedgerUnavailable(ServiceError):
    """PostgreSQL could not be reached within the deadline."""


class StreamUnavailable(ServiceError):
    """Redis or Valkey could not be reached within the deadline."""


class SchemaMismatch(ServiceError):
    """The ledger's tables are missing or belong to another version."""

    retryable = False


class ProcessClosing(ServiceError):
    """The process closes its connections; what it waited for goes on in the ledger."""


class StackNotRunning(ServiceError):
    """Neither settings nor a running local stack say where the servers are."""

    retryable = False
