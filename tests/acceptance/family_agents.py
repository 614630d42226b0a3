"""Agents that carry out the plan in their message: they ask others in the ways there are.

A plan is a JSON object. `say` says a text; `ask` names an agent that is given the plan in `of`, in the way
that `how` names; `gate` waits for a file in the folder of `FAMILY_FOLDER`, after noting that it is there;
`both` carries out several plans at once.
"""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from think_celery import AgentHandle, AsyncAgentHandle, NestedTurnError, Think, Turn
from think_celery.core.turn import ChatResponse
from think_celery.testing import ToolCall, scripted_model

FOLDER = "FAMILY_FOLDER"
ONLY = "FAMILY_ONLY"
"""Set to leave out the class `Node`."""
Plan = dict[str, Any]


def _file(name: str) -> Path:
    return Path(os.environ[FOLDER]) / name


async def carry_out(plan: Plan) -> str:
    """Carry out a plan in a turn, and return what there is to say."""
    if "gate" in plan:
        _file(f"at-{plan['gate']}").touch()
        while not _file(f"open-{plan['gate']}").exists():  # noqa: ASYNC110 - the other side is a process
            await asyncio.sleep(0.01)
    if "both" in plan:
        return " + ".join(await asyncio.gather(*(carry_out(each) for each in plan["both"])))
    if "ask" not in plan:
        return str(plan.get("say", "passed"))
    try:
        return await _ask(AsyncAgentHandle(*plan["ask"]), plan["how"], json.dumps(plan["of"]))
    except NestedTurnError as error:
        _file(f"refused-{os.getpid()}").write_text(str(error))
        raise


async def _ask(agent: AsyncAgentHandle, how: str, text: str) -> str:
    match how:
        case "chat":
            result = await agent.chat(text)
        case "save":
            result = await agent.save_messages(text)
        case _:
            receipt = await agent.submit_messages(text)
            if how == "wait":
                row = await agent.wait_for_submission(receipt.submission_id)
                return f"({'gone' if row is None else row.status})"
            if how == "stream":
                return f"({[event async for event in agent.stream(receipt.submission_id)][-1].status})"
            return f"({await agent.wait_until_stable()})"
    return f"({result.text or result.status})"


def carry_out_blocking(plan: Plan) -> str:
    """The same in a thread."""
    if "ask" not in plan:
        return str(plan.get("say", "passed"))
    agent, text, how = AgentHandle(*plan["ask"]), json.dumps(plan["of"]), plan["how"]
    if how == "chat":
        return f"({agent.chat(text).text})"
    if how == "save":
        return f"({agent.save_messages(text).text})"
    receipt = agent.submit_messages(text)
    if how == "wait":
        row = agent.wait_for_submission(receipt.submission_id)
        return f"({'gone' if row is None else row.status})"
    if how == "stream":
        return f"({list(agent.stream(receipt.submission_id))[-1].status})"
    return f"({agent.wait_until_stable()})"


class Tool(Think):
    """Carries out its plan in a tool that is a plain function."""

    def get_model(self) -> Any:
        return scripted_model(lambda text: ToolCall("work", {"plan": text}), "worked")

    def get_tools(self) -> list[Any]:
        return [work]


def work(plan: str) -> str:
    """Carry out the plan."""
    text = carry_out_blocking(json.loads(plan))
    assert threading.current_thread().name != "think-loop"
    return text


if not os.environ.get(ONLY):

    class Node(Think):
        """Carries out its plan in its turn; its response hook carries out the plan in `then`."""

        async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
            yield await carry_out(json.loads(turn.text))

        async def on_chat_response(self, response: ChatResponse) -> None:
            plan = (response.submission.metadata or {}).get("then")
            for each in plan or []:
                await self.save_messages(json.dumps(each))
