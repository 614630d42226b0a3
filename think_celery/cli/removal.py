"""`delete`: remove records of ended submissions, or everything about an agent."""

from datetime import datetime
from typing import Annotated

import typer

from think_celery.cli.change import PANEL
from think_celery.cli.context import Agent, Json, Yes, command, confirmed, handle
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.moment import earlier
from think_celery.cli.output import complain, print_json, write
from think_celery.core.submission import TERMINAL
from think_celery.engine.ending import DELETE_LIMIT
from think_celery.errors import InvalidInput
from think_celery.handle import AgentHandle


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "delete", panel=PANEL)(delete)


def delete(
    agent: Agent,
    submission_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The ended submission; or use --ended or --everything."),
    ] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Every ended submission, the oldest first.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="With --ended: only this status; may be given more than once."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="With --ended: only what ended earlier than 7d ago, or an instant."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --ended: so many at most; default all.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="The agent: submissions, conversation, streams.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> ExitCode | None:
    """Delete records of ended submissions, whose ids are free again; the messages stay in the conversation.

    With --everything, delete the agent with its conversation, also what waits or runs.
    """
    if (submission_id is not None) + ended + everything != 1:
        raise InvalidInput("id", "name one submission, or give either --ended or --everything instead")
    if not ended and not (status is None and before is None and limit is None):
        raise InvalidInput("--ended", "is what --status, --before and --limit go with")
    if ended:
        statuses, moment = _ended_statuses(status), earlier("--before", before)
        count = _delete_ended(handle(agent), statuses, moment, limit)
        _print(f"deleted {count} {'record' if count == 1 else 'records'}", {"deleted": count}, as_json)
        return None
    if submission_id is not None:
        return _delete_one(agent, submission_id, as_json=as_json)
    return _delete_agent(agent, yes=yes, as_json=as_json)


def _delete_ended(
    to: AgentHandle, statuses: list[str] | None, before: datetime | None, limit: int | None
) -> int:
    count = 0
    while limit is None or count < limit:
        batch = DELETE_LIMIT if limit is None else min(DELETE_LIMIT, limit - count)
        deleted = to.delete_submissions(statuses, before, batch)
        count += deleted
        if deleted < batch:
            break
    return count


def _ended_statuses(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if name not in TERMINAL:
            raise InvalidInput(
                "--status", f"{name!r} is no status of an end; use {', '.join(sorted(TERMINAL))}"
            )
    return names or None


def _delete_one(agent: str, submission_id: str, *, as_json: bool) -> ExitCode | None:
    to = handle(agent)
    if to.delete_submission(submission_id):
        _print(f"deleted {submission_id}", {"deleted": 1}, as_json)
        return None
    found = to.inspect_submission(submission_id)
    if found is None:
        complain(f"{agent} has no submission {submission_id!r}")
        return ExitCode.NOT_FOUND
    hint = "it has just ended, try again" if found.is_terminal else "cancel it first"
    complain(f"{submission_id} is {found.status}; {hint}")
    return ExitCode.NEGATIVE


def _delete_agent(agent: str, *, yes: bool, as_json: bool) -> ExitCode | None:
    to = handle(agent)
    if not confirmed(f"Delete {agent} with its submissions and its whole conversation?", yes=yes):
        return ExitCode.NEGATIVE
    if not to.delete_agent():
        complain(f"there is nothing about {agent}")
        return ExitCode.NOT_FOUND
    _print(f"deleted everything about {agent}", {"deleted": agent}, as_json)
    return None


def _print(text: str, value: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        write(f"{text}\n")
