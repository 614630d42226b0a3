"""A research team: a lead asks three researchers at once, sends home whoever is last, and sums up.

    python examples/research_team.py "Should our job queue live in PostgreSQL?"

runs PostgreSQL, Valkey and a worker in a temporary folder, prints what everybody says while they say it, and
stops it all again. The models follow a script, so that no key and no network is needed, whatever the
question. With a model name it is real: `RESEARCH_MODEL=openai:gpt-5`, or any other that pydantic-ai knows,
and the provider's key in the environment.

In a stack of your own: `THINK_AGENTS=research_team think-celery up` in this folder, and in a second terminal
`think-celery submit Lead/me "Should …?" --wait`.
"""

import asyncio
import os
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import islice
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from think_celery import ChatStart, StreamCallback, Think, Turn
from think_celery.testing import scripted_model

SIDES = {
    "history": "What was tried before, and what came of it?",
    "practice": "Who does it today, and how?",
    "doubts": "What speaks against it?",
}


class Researcher(Think):
    """Looks at a question from one side. Each belongs to its lead and has a conversation of its own."""

    def get_model(self) -> Any:
        side = self.name.rpartition("/")[2]  # a sub-agent's name is its path: Lead/demo/history
        return os.environ.get("RESEARCH_MODEL") or SCRIPTS[side]

    def get_system_prompt(self) -> str:
        return "You are a researcher. Answer in at most five short sentences, without headings or lists."


class Lead(Think):
    """Has a question researched from all sides, then answers it."""

    reports = ""

    def get_model(self) -> Any:
        return os.environ.get("RESEARCH_MODEL") or SCRIPTS["lead"]

    def get_system_prompt(self) -> str:
        return f"You lead a research team. Answer in three sentences, from these reports:\n{self.reports}"

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        # What the researchers say is passed on to whoever follows this turn, and not stored (`transient`).
        heard: asyncio.Queue[dict[str, str] | None] = asyncio.Queue()
        research = asyncio.create_task(self.research(turn.text, heard))
        while (said := await heard.get()) is not None:
            yield {"type": "data-heard", "data": said, "transient": True}
        self.reports = await research
        async for chunk in turn.run_model(self):
            yield chunk

    async def research(self, question: str, heard: "asyncio.Queue[dict[str, str] | None]") -> str:
        """Ask everybody at once; two reports are enough. Returns what there is to read."""
        try:
            team = {side: await self.sub_agent(Researcher, side) for side in SIDES}
            ears = {side: Ear(side, heard) for side in SIDES}
            calls = {
                side: asyncio.create_task(team[side].chat(f"{question} {SIDES[side]}", ears[side]))
                for side in SIDES
            }
            for ready in islice(asyncio.as_completed(calls.values()), 2):
                await ready
            for side, call in calls.items():
                if not call.done():  # what it has said so far is kept, in its conversation and in the result
                    await team[side].cancel_chat(ears[side].request_id, "two reports are enough")
            results = {side: await call for side, call in calls.items()}
        finally:
            heard.put_nowait(None)
        return "\n\n".join(f"{side} ({result.status}): {result.text}" for side, result in results.items())


class Ear(StreamCallback):
    """Hears one researcher's turn."""

    def __init__(self, side: str, heard: "asyncio.Queue[dict[str, str] | None]") -> None:
        self.side = side
        self.heard = heard
        self.request_id = ""

    async def on_start(self, event: ChatStart) -> None:
        self.request_id = event.request_id  # names the turn, for `cancel_chat`

    async def on_event(self, json: str) -> None:
        chunk = loads(json)
        if chunk["type"] == "text-delta":
            self.heard.put_nowait({"who": self.side, "text": chunk["delta"]})


class Printer(StreamCallback):
    """Prints the lead's turn: the researchers sentence by sentence, then the answer word by word."""

    def __init__(self) -> None:
        self.begun: defaultdict[str, str] = defaultdict(str)

    def on_event(self, json: str) -> None:
        match loads(json):
            case {"type": "data-heard", "data": {"who": who, "text": text}}:
                *sentences, self.begun[who] = re.split(r"(?<=[.?!])\s+", self.begun[who] + text)
                for sentence in sentences:
                    print(f"{who:>10} | {sentence}")
            case {"type": "text-start"}:
                self.flush()
            case {"type": "text-delta", "delta": text}:
                print(text, end="", flush=True)

    def flush(self) -> None:
        """Print what the researchers had begun to say."""
        for who, sentence in self.begun.items():
            if sentence:
                print(f"{who:>10} | {sentence}{'' if sentence.endswith('.') else ' …'}")
        print()


def main() -> int:
    """Ask the lead, as any program would that has a stack to talk to."""
    from think_celery.dev.local import local_stack

    question = " ".join(sys.argv[1:]) or "Should our job queue live in PostgreSQL?"
    here = Path(__file__).resolve().parent
    print("starting PostgreSQL, Valkey and a worker …")
    with TemporaryDirectory() as folder, local_stack(Path(folder), agents=["research_team"], code=here):
        print(f"asking the lead: {question}\n")
        result = Lead.handle("demo").chat(question, Printer())
        print("\n" if result.status == "completed" else f"\nit did not work: {result.error}\n")
        for side in SIDES:
            turn = Lead.handle("demo").sub_agent(Researcher, side).list_submissions(kind="chat")[0]
            print(f"{side:>10} | {turn.status}{f': {turn.error}' if turn.error else ''}")
    return 0 if result.status == "completed" else 1


SCRIPTS = {
    "history": scripted_model(
        "Tables have been used as queues for decades. Most early ones lost their time waiting for locks. "
        "PostgreSQL took that reason away in 2016, with SKIP LOCKED.",
        pause_seconds=0.03,
    ),
    "practice": scripted_model(
        "Several job libraries work that way today. Workers poll, or a notification wakes them. "
        "Thousands of jobs a second are reported from ordinary machines.",
        pause_seconds=0.05,
    ),
    "doubts": scripted_model(
        "I want to be thorough here. Every job costs a write to disk and leaves a dead row behind. "
        "And then there are at least eleven further points, each of which deserves a chapter.",
        pause_seconds=0.12,
    ),
    "lead": scripted_model(
        "Yes, as long as a few thousand jobs a second are enough. You win one place for data and jobs, and "
        "one commit for both. Watch the dead rows, which one of us did not get to finish explaining.",
        pause_seconds=0.03,
    ),
}
"""What the models say when there is none."""


if __name__ == "__main__":
    sys.exit(main())
