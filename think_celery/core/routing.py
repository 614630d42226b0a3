"""Names of queues, nudges, keys and channels; every name can be read back by a person."""

from typing import Literal
from urllib.parse import quote, unquote
from uuid import UUID

from think_celery.core.address import Address
from think_celery.errors import InvalidInput

Scope = Literal["agent", "type"]
_QUEUE = "agent."


def encode(name: str) -> str:
    """Percent-encode an agent name so that it holds only ASCII letters, digits and `-_~%`.

    >>> encode("ann@corp.com/42")
    'ann%40corp%2Ecom%2F42'
    """
    return quote(name, safe="").replace(".", "%2E")


def decode(text: str) -> str:
    """Undo `encode`."""
    return unquote(text, errors="strict")


def queue_name(agent: Address, scope: Scope) -> str:
    """Return the Celery queue that carries an agent's nudges.

    >>> queue_name(Address("TaskAgent", "alice"), "agent")
    'agent.TaskAgent.alice'
    >>> queue_name(Address("TaskAgent", "alice"), "type")
    'agent.TaskAgent'
    """
    if scope == "type":
        return _QUEUE + agent.type_name
    return f"{_QUEUE}{agent.type_name}.{encode(agent.name)}"


def agent_of_queue(queue: str) -> Address | None:
    """Return the agent that a per-agent queue serves, None for any other queue.

    >>> agent_of_queue("agent.TaskAgent.a%2Eb")
    Address(type_name='TaskAgent', name='a.b')
    >>> agent_of_queue("celery") is None
    True
    """
    parts = queue.split(".")
    if len(parts) != 3 or parts[0] != "agent":
        return None
    try:
        return Address(parts[1], decode(parts[2]))
    except (InvalidInput, UnicodeDecodeError):
        return None


def nudge_id(uid: UUID, number: int) -> str:
    """Return the task id of a submission's nudge, counted from 1: a revoked id is never used again."""
    return f"{uid}.{number}"


def log_key(prefix: str, uid: UUID) -> str:
    """Return the key of the Redis stream that holds a turn's frames."""
    return f"{prefix}:turn:{uid}:log"


def turn_channel(prefix: str, uid: UUID) -> str:
    """Return the pub/sub channel of a turn's frames."""
    return f"{prefix}:turn:{uid}:live"


def agent_channel(prefix: str, agent: Address) -> str:
    """Return the pub/sub channel of an agent's status changes."""
    return f"{prefix}:agent:{agent.type_name}:{encode(agent.name)}"


def announce_channel(prefix: str) -> str:
    """Return the pub/sub channel on which workers hear of queues to consume."""
    return f"{prefix}:queues"


def abort_channel(prefix: str) -> str:
    """Return the pub/sub channel on which worker processes hear of turns to stop."""
    return f"{prefix}:aborts"


def abort_key(prefix: str, uid: UUID, attempt: int) -> str:
    """Return the key of the flag that asks one attempt to stop."""
    return f"{prefix}:turn:{uid}:abort:{attempt}"


def witness_key(prefix: str) -> str:
    """Return the key that says how far the ledger had come."""
    return f"{prefix}:ledger:seen"
