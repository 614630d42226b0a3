"""Names of queues, keys and channels: one to one, readable, and safe whatever an agent is called."""

import re
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.strategies import NAMES, TYPE_NAMES
from think_celery.core import routing
from think_celery.core.address import Address

UID = UUID("00000000-0000-4000-8000-00000000000a")


@given(TYPE_NAMES, NAMES)
@example("TaskAgent", "*")
@example("TaskAgent", "a:b")
@example("TaskAgent", "🦊🦊")
@example("TaskAgent", "__proto__")
@example("TaskAgent", "customer.42/eu@corp.com")
@example("TaskAgent", "%2E.%")
@example("agent", "agent.agent.agent")
@example("TaskAgent", "x" * 200)
@example("TaskAgent", "\N{HIGH VOLTAGE SIGN}" * 200)
def test_the_agent_is_read_back_from_its_queue(type_name: str, name: str) -> None:
    agent = Address(type_name, name)
    queue = routing.queue_name(agent, "agent")
    assert routing.agent_of_queue(queue) == agent
    assert re.fullmatch(r"agent\.[A-Za-z0-9_]+\.[A-Za-z0-9_~%-]+", queue)


@given(NAMES, NAMES)
def test_two_agents_never_share_a_queue_or_a_channel(first: str, second: str) -> None:
    one, two = Address("TaskAgent", first), Address("TaskAgent", second)
    assert (routing.queue_name(one, "agent") == routing.queue_name(two, "agent")) == (first == second)
    assert (routing.agent_channel("t", one) == routing.agent_channel("t", two)) == (first == second)


@given(NAMES)
def test_encoding_is_undone_by_decoding(name: str) -> None:
    assert routing.decode(routing.encode(name)) == name


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("alice", "agent.TaskAgent.alice"),
        ("customer-42", "agent.TaskAgent.customer-42"),
        ("a.b", "agent.TaskAgent.a%2Eb"),
        ("a:b", "agent.TaskAgent.a%3Ab"),
        ("*", "agent.TaskAgent.%2A"),
        ("é", "agent.TaskAgent.%C3%A9"),
    ],
)
def test_queue_names_are_these(name: str, queue: str) -> None:
    """Pinned: a change would strand the bells of a running system."""
    assert routing.queue_name(Address("TaskAgent", name), "agent") == queue


@given(NAMES)
def test_scope_type_has_one_queue_per_class_that_serves_no_single_agent(name: str) -> None:
    queue = routing.queue_name(Address("TaskAgent", name), "type")
    assert queue == "agent.TaskAgent"
    assert routing.agent_of_queue(queue) is None


@pytest.mark.parametrize(
    "queue",
    [
        "",
        "celery",
        "agent.TaskAgent",
        "agent.TaskAgent.",
        "agent..alice",
        "agent.Task-Agent.alice",
        "agent.TaskAgent.a.b",
        "other.TaskAgent.alice",
        "agent.TaskAgent.%FF",
        "agent.TaskAgent.%1F",
        "agent.TaskAgent." + "x" * 201,
    ],
)
def test_a_foreign_queue_serves_no_agent(queue: str) -> None:
    assert routing.agent_of_queue(queue) is None


@given(st.text())
def test_no_queue_name_makes_the_reader_fail(queue: str) -> None:
    routing.agent_of_queue(queue)


def test_names_of_one_turn_share_its_uuid() -> None:
    assert routing.nudge_id(UID, 1) == f"{UID}.1"
    assert routing.log_key("think", UID) == f"think:turn:{UID}:log"
    assert routing.turn_channel("think", UID) == f"think:turn:{UID}:live"


def test_every_name_in_redis_starts_with_the_prefix() -> None:
    agent = Address("TaskAgent", "a:b")
    assert routing.agent_channel("left", agent) == "left:agent:TaskAgent:a%3Ab"
    assert routing.announce_channel("left") == "left:queues"
