"""The example agents load by themselves and answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.openai_server import KEY, openai_server

ROOT = Path(__file__).resolve().parents[2]

GREET = """
import asyncio
from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.turn import Turn

registry.load(["greeter"])
agent = registry.get("Greeter")(Address("Greeter", "ada"))
said = [{"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]
turn = Turn(None, lambda: said, said, 1, None, lambda agent: None)

async def answer():
    return [part async for part in agent.on_chat_message(turn)]

print("".join(asyncio.run(answer())).strip())
"""


def test_the_greeter_answers_without_a_model() -> None:
    """In a process of its own, as its class would stay in this one's registry."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "examples")}
    done = subprocess.run(
        [sys.executable, "-c", GREET], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello, ada! This is message number 1.\n"


def run_team(*arguments: str, **environ: str) -> list[str]:
    """Run the research team as its page says, and return what it printed."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("THINK_", "RESEARCH_"))}
    done = subprocess.run(
        [sys.executable, "examples/research_team.py", *arguments],
        env=env | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.timeout(120)
def test_the_research_team_sends_home_whoever_is_last() -> None:
    printed = run_team()
    heard = [line for line in printed if " | " in line]
    assert heard.index("   history | Tables have been used as queues for decades.") < heard.index(
        "   history | PostgreSQL took that reason away in 2016, with SKIP LOCKED."
    )
    assert "  practice | Workers poll, or a notification wakes them." in heard
    assert "    doubts | I want to be thorough here." in heard
    assert not any("eleven further points" in line for line in printed)
    assert any(
        line.startswith("Yes, as long as a few thousand jobs a second are enough.") for line in printed
    )
    assert printed[-3:] == [
        "   history | completed",
        "  practice | completed",
        "    doubts | aborted: two reports are enough",
    ]


@pytest.mark.timeout(120)
def test_the_research_team_asks_a_provider_when_a_model_is_named() -> None:
    with openai_server() as server:
        provider = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": KEY}
        printed = run_team("Why", "tea?", RESEARCH_MODEL="openai:gpt-5", **provider)
        asked = [json.dumps(body) for _, body in server.requests]
    assert "asking the lead: Why tea?" in printed
    assert sum("You are a researcher." in each for each in asked) == 3
    (last,) = (each for each in asked if "You lead a research team." in each)
    assert last.count("(completed): ") >= 2, "the reports are what it answers from"
    assert printed[-3].endswith("completed")
