"""Writes docs/lifecycle.md from the transition table of think_celery/core/submission.py.

`python docs/lifecycle.py` writes the page; with `--check` it only exits 1 if the page is stale.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from think_celery.core.submission import TERMINAL, TRANSITIONS, Event, Status

PAGE = Path(__file__).with_suffix(".md")

MEANING: dict[Status, str] = {
    Status.PENDING: "accepted and stored; waits for its turn",
    Status.RUNNING: "a worker has claimed it",
    Status.COMPLETED: "the turn ended and its answer is in the conversation",
    Status.ABORTED: "cancelled; `error` holds the reason that was given",
    Status.SKIPPED: "the conversation was cleared before the turn could count",
    Status.ERROR: "the turn failed; `error` holds the text",
}

CAUSE: dict[tuple[Status, Event], str] = {
    (Status.PENDING, Event.CLAIM): "it is the oldest pending row of an idle lane",
    (Status.PENDING, Event.CANCEL): "cancelled before it started; its messages never reach the conversation",
    (Status.PENDING, Event.EXPIRE): "it was not to start after this time, or was started too often in vain",
    (Status.PENDING, Event.RESET): "the conversation was cleared",
    (Status.RUNNING, Event.COMPLETE): "the answer is stored together with the status",
    (Status.RUNNING, Event.FAIL): "the model, a tool or the agent's own code raised, or no start is left",
    (Status.RUNNING, Event.CANCEL): "cancelled while it ran; what was said so far is kept",
    (Status.RUNNING, Event.RESET): "the conversation was cleared while it ran",
    (Status.RUNNING, Event.REQUEUE): "its worker is gone or shutting down; it runs again in its old place",
}

INTRODUCTION = """\
<!-- Written by docs/lifecycle.py from think_celery/core/submission.py; change the table there, run it. -->

# The life of a submission

A submission is the durable request for one turn of an agent. It is one row of the ledger, and its status is
one of {count} words. This page is generated from the table that the code uses, so it cannot be out of date.
"""

NOTES = """\
## What to rely on

* A submission that was accepted reaches exactly one terminal status, whatever dies on the way.
* A terminal status never changes. `completed_at` is set in the same write, so a submission is terminal if and
  only if `completed_at` is set.
* A step that is not in the table is refused with `StateConflict`, and nothing changes.
* Within one agent, turns start in order of `position`, and never two at once. A turn that goes back to
  `pending` keeps its position, so nothing overtakes it. `attempt` counts its starts.
* Cancelling ends the row at once. A turn that is still stopping keeps its lane until it has stopped, so the
  next turn never overlaps it.
"""


def render() -> str:
    """Return the text of the page."""
    words = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
    count = words.get(len(Status), str(len(Status)))
    parts = [
        INTRODUCTION.format(count=count),
        "```mermaid\n" + "\n".join(_diagram()) + "\n```\n",
        "## Statuses\n\n" + "\n".join(_statuses()) + "\n",
        "## Steps\n\n" + "\n".join(_steps()) + "\n",
        NOTES,
    ]
    return "\n".join(parts)


def _diagram() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    direction LR"
    yield f"    [*] --> {Status.PENDING}: accept"
    for (source, event), target in TRANSITIONS.items():
        yield f"    {source} --> {target}: {event}"
    for status in Status:
        if status in TERMINAL:
            yield f"    {status} --> [*]"


def _statuses() -> Iterator[str]:
    yield "| Status | Terminal | Meaning |"
    yield "|---|---|---|"
    for status in Status:
        yield f"| `{status}` | {'yes' if status in TERMINAL else 'no'} | {MEANING[status]} |"


def _steps() -> Iterator[str]:
    yield "| From | Event | To | When |"
    yield "|---|---|---|---|"
    for (source, event), target in TRANSITIONS.items():
        yield f"| `{source}` | {event} | `{target}` | {CAUSE[source, event]} |"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it; return the exit status."""
    text = render()
    if arguments != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        print(f"{PAGE.parent.name}/{PAGE.name} is up to date.")
        return 0
    print(f"{PAGE.parent.name}/{PAGE.name} is stale; run: .venv/bin/python docs/lifecycle.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
