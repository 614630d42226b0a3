"""`list`, `inspect`, `messages`, `agents`: what is there, without changing it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from think_celery.cli.context import (
    Agent,
    Json,
    Metadata,
    SubmissionId,
    command,
    connect,
    handle,
    json_object,
)
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import (
    age,
    ago,
    complain,
    console,
    pairs,
    print_json,
    status_text,
    table,
    took,
    until,
)
from think_celery.core.submission import Status, Submission
from think_celery.engine.reading import LaneView, survey
from think_celery.ledger.classes import paused_classes

PANEL = "Looking around"
_SPEAKERS = {"user": "bold cyan", "assistant": "bold green", "system": "bold yellow"}


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "agents", panel=PANEL)(agents)
    command(app, "list", panel=PANEL)(list_)
    command(app, "inspect", panel=PANEL)(inspect)
    command(app, "messages", panel=PANEL)(messages)


def agents(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show so many at most.")] = 100,
    as_json: Json = False,
) -> ExitCode | None:
    """Show the agents' lanes: those with work first, then the last used."""
    runtime = connect()
    lanes, classes = survey(runtime, limit=limit), set(paused_classes(runtime.database))
    if as_json:
        print_json([{**lane.to_json(), "classPaused": _class(lane) in classes} for lane in lanes])
        return None
    table(
        ("agent", "pending", "oldest pending", "running", "last used", "paused"),
        [
            (
                lane.agent,
                lane.pending or "",
                ago(lane.oldest_pending_at),
                lane.running or "",
                ago(lane.used_at),
                "paused" if lane.paused else "its class" if _class(lane) in classes else "",
            )
            for lane in lanes
        ],
        empty="No agent has been talked to yet.",
    )
    return None


def list_(
    agent: Agent,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="Only this status; may be given more than once."),
    ] = None,
    metadata: Metadata = None,
    limit: Annotated[int, typer.Option(help="Show so many at most, up to 100.")] = 50,
    as_json: Json = False,
) -> ExitCode | None:
    """List an agent's submissions, the youngest first."""
    wanted = json_object("metadata", metadata)
    found = handle(agent).list_submissions(status=status or None, limit=limit, metadata=wanted)
    if as_json:
        print_json([submission.to_json() for submission in found])
        return None
    table(
        ("submission", "status", "#", "age", "waited", "took", "note"),
        [_row(submission) for submission in found],
        empty=f"{agent} has no {'such ' if status or wanted else ''}submissions.",
    )
    return None


def inspect(agent: Agent, submission_id: SubmissionId, as_json: Json = False) -> ExitCode | None:
    """Show everything about one submission."""
    found = handle(agent).inspect_submission(submission_id)
    if found is None:
        complain(f"{agent} has no submission {submission_id!r}")
        return ExitCode.NOT_FOUND
    if as_json:
        print_json(found.to_json())
        return None
    values = found.to_json()
    values["status"] = status_text(found.status)
    pairs((_words(name), _shown(value)) for name, value in values.items())
    return None


def messages(agent: Agent, as_json: Json = False) -> ExitCode | None:
    """Print an agent's conversation."""
    found = handle(agent).get_messages()
    if as_json:
        print_json(found)
        return None
    if not found:
        console().print(f"{agent} has no messages yet.")
    for message in found:
        role = str(message.get("role"))
        console().print(Text(role, style=_SPEAKERS.get(role, "bold")))
        for part in message.get("parts", []):
            if (text := _part_text(part)) is not None:
                console().print(Text.assemble("  ", text), soft_wrap=True)
    return None


def _row(submission: Submission) -> tuple[Any, ...]:
    waited = took(submission.created_at, submission.started_at or submission.completed_at)
    ran = took(submission.started_at, submission.completed_at)
    status = status_text(submission.status)
    return (
        submission.submission_id,
        status,
        submission.position or "",
        age(submission.created_at),
        waited,
        ran,
        _note(submission),
    )


def _note(submission: Submission) -> str:
    if submission.error:
        return submission.error
    notes = []
    if submission.status == Status.PENDING and (wait := until(submission.not_before)):
        notes.append(f"starts in {wait}")
    if submission.attempt > 1:
        notes.append(f"attempt {submission.attempt}")
    if submission.rerun_of is not None:
        notes.append(f"repeats {submission.rerun_of}")
    return ", ".join(notes)


def _class(lane: LaneView) -> str:
    return lane.agent.partition("/")[0]


def _part_text(part: Mapping[str, Any]) -> Text | None:
    kind = str(part.get("type", ""))
    if kind == "text":
        return Text(str(part.get("text", "")).replace("\n", "\n  "))
    if kind == "reasoning":
        return Text(str(part.get("text", "")).replace("\n", "\n  "), style="dim italic")
    if kind.startswith("tool-") or kind == "dynamic-tool":
        name = part.get("toolName") or kind.removeprefix("tool-")
        result = part.get("errorText") or _shown(part.get("output", ""))
        return Text(f"{name}({_shown(part.get('input', ''))}) → {result}", style="dim")
    return None if kind == "step-start" else Text(f"[{kind}]", style="dim")


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _shown(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
