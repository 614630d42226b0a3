"""A structured answer is part of what is said about a submission, inside and outside."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.engine.receiver import receiving
from think_celery import AgentHandle, Think, Turn
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually


class Accountant(Think):
    """Answers with a value instead of text."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield {"type": "data-output", "data": {"total": 3}}


@pytest.mark.spec("S151")
def test_a_structured_answer_is_inspected_and_reported(make_runtime: Callable[..., Runtime]) -> None:
    runtime = make_runtime(webhook_allow_private=True)
    handle = AgentHandle("Accountant", "a", runtime=runtime)
    with receiving() as receiver:
        receipt = handle.submit_messages("add it up", webhook_url=receiver.url())
        drain(runtime, handle.address)
        eventually(lambda: receiver.requests, describe="the report")
    assert json.loads(receiver.requests[0].body)["submission"]["output"] == {"total": 3}
    row = handle.inspect_submission(receipt.submission_id)
    assert row is not None
    assert row.output == {"total": 3}
    assert handle.chat("again").output == {"total": 3}
