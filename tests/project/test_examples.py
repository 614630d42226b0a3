"""The example agents load by themselves and answer."""

import os
import subprocess
import sys
from pathlib import Path

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
