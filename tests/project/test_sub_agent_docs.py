"""The page about sub-agents: its examples run, and do what it says."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import think_celery
from think_celery import AgentHandle, AsyncAgentHandle, Think, message_text
from think_celery.core.submission import Status
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime, use
from think_celery.testing import ToolCall, scripted_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sub-agents.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's Python defines, with models that need no key."""
    names: dict[str, Any] = {name: getattr(think_celery, name) for name in think_celery.__all__}
    names |= {"asyncio": asyncio, "__name__": "sub_agent_docs"}
    exec("\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), names)  # noqa: S102
    steps = [ToolCall("ask_all", {"question": "Why?"}), ToolCall("ask_archive", {"question": "Why?"})]
    desk, clerk = scripted_model(steps, "Asked."), scripted_model("Because.", pause_seconds=1.0)
    names["Desk"].get_model = lambda self: desk
    names["Clerk"].get_model = lambda self: clerk
    return names


def test_a_desk_asks_its_clerks(page: dict[str, Any], runtime: Runtime) -> None:
    use(runtime)
    desk: type[Think] = page["Desk"]
    agent: AgentHandle = desk.handle("ann")
    receipt = agent.submit_messages("Find out")
    drain(runtime, agent.address)
    assert agent.inspect_submission(receipt.submission_id).status is Status.COMPLETED  # type: ignore[union-attr]
    parts = {part["type"]: part for part in agent.get_messages()[-1]["parts"]}
    assert parts["tool-ask_all"]["output"] == "Because.\nBecause."
    assert parts["tool-ask_archive"]["output"] == "Because."
    clerks: type[Think] = page["Clerk"]
    for name in ("orders", "invoices", "archive"):
        assert (
            agent.sub_agent(clerks, name).get_messages() == clerks.handle(f"Desk/ann/{name}").get_messages()
        )
        assert message_text(agent.sub_agent(clerks, name).get_messages()[-1]) == "Because."


@pytest.mark.parametrize(("seconds", "status"), [(0.5, "aborted"), (20, "completed")])
def test_a_call_has_patience(page: dict[str, Any], runtime: Runtime, seconds: float, status: str) -> None:
    use(runtime)
    child = AsyncAgentHandle("Clerk", f"patient-{seconds}")
    assert asyncio.run(page["ask_with_patience"](child, "Why?", seconds)).status == status
