"""`cancel`, `clear`, `pause`, `resume`: change what is going to happen."""

from typing import Annotated, Any

import typer

from think_celery.cli.context import (
    Agent,
    Json,
    Metadata,
    Yes,
    command,
    confirmed,
    connect,
    handle,
    json_object,
)
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import complain, print_json, table, write
from think_celery.core.submission import CancelResult
from think_celery.engine.ending import pause_class
from think_celery.errors import InvalidInput
from think_celery.ledger.classes import paused_classes

PANEL = "Changing one's mind"
Target = Annotated[
    str,
    typer.Argument(metavar="AGENT|CLASS", help="One agent (TaskAgent/alice), or a whole class (TaskAgent)."),
]


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "cancel", panel=PANEL)(cancel)
    command(app, "clear", panel=PANEL)(clear)
    command(app, "pause", panel=PANEL)(pause)
    command(app, "resume", panel=PANEL)(resume)


def cancel(
    agent: Agent,
    submission_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The submission's id; or use --all.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every submission of the agent that waits or runs.")
    ] = False,
    metadata: Metadata = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Kept as the error of what is cancelled.")
    ] = None,
    as_json: Json = False,
) -> ExitCode | None:
    """Abort a submission that waits or runs; a running turn stops in a moment.

    What a running turn has said stays in the conversation; one that had not begun leaves nothing. Exit status
    0 when this call cancelled it, 1 when it had ended before, 4 when there is none. With --all, 0 also when
    there was nothing to cancel.
    """
    if everything == (submission_id is not None):
        raise InvalidInput("id", "name one submission, or give --all instead")
    if metadata is not None and not everything:
        raise InvalidInput("--metadata", "chooses among many; use it with --all")
    wanted = json_object("metadata", metadata)
    to = handle(agent)
    if submission_id is None:
        _print_cancelled(agent, to.cancel_all(reason, metadata=wanted), as_json=as_json)
        return None
    return _tell(agent, to.cancel_submission(submission_id, reason), as_json=as_json)


def clear(
    agent: Agent,
    keep_messages: Annotated[
        bool, typer.Option("--keep-messages", help="End the turns only; the conversation stays.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> ExitCode | None:
    """Empty an agent's conversation: what waits is skipped, what runs is ended and leaves nothing behind."""
    doing = "End every turn of" if keep_messages else "Empty the conversation of"
    to = handle(agent)
    if not confirmed(f"{doing} {agent}?", yes=yes):
        return ExitCode.NEGATIVE
    if keep_messages:
        to.reset_turn_state()
    else:
        to.clear_messages()
    if as_json:
        print_json({"agent": agent, "messagesKept": keep_messages})
    else:
        write(f"{'ended the turns of' if keep_messages else 'cleared'} {agent}\n")
    return None


def pause(target: Target, as_json: Json = False) -> ExitCode | None:
    """Let no further turn of an agent or of a class start; running ones go on, submitting stays possible."""
    return _switch(target, paused=True, as_json=as_json)


def resume(target: Target, as_json: Json = False) -> ExitCode | None:
    """Let turns of a paused agent or class start again."""
    return _switch(target, paused=False, as_json=as_json)


def _switch(target: str, *, paused: bool, as_json: bool) -> ExitCode | None:
    blocked = None
    if "/" in target:
        to = handle(target)
        changed = to.pause() if paused else to.resume()
        type_name = to.address.type_name
        blocked = type_name if not paused and type_name in paused_classes(connect().database) else None
    else:
        changed = pause_class(connect(), target, paused=paused)
    if as_json:
        kind = "agent" if "/" in target else "class"
        also = {} if blocked is None else {"classPaused": True}
        print_json({kind: target, "paused": paused, "changed": changed, **also})
        return None
    if changed:
        write(f"{'paused' if paused else 'resumed'} {target}\n")
    else:
        write(f"{target} {'is paused already' if paused else 'was not paused'}\n")
    if blocked is not None:
        write(f"its class is paused, so nothing starts yet: think-celery resume {blocked}\n")
    return None


def _tell(agent: str, result: CancelResult, *, as_json: bool) -> ExitCode | None:
    if as_json:
        print_json(result.to_json())
    if result.outcome == "not_found":
        if not as_json:
            complain(f"{agent} has no submission {result.submission_id!r}")
        return ExitCode.NOT_FOUND
    if result.outcome == "already_terminal":
        if not as_json:
            ended = "" if result.submission is None else f" in {result.submission.status}"
            complain(f"{result.submission_id} had ended{ended} before")
        return ExitCode.NEGATIVE
    if not as_json:
        write(f"cancelled {result.submission_id}, which {_state(result)}\n")
    return None


def _print_cancelled(agent: str, results: list[CancelResult], *, as_json: bool) -> None:
    if as_json:
        print_json([result.to_json() for result in results])
        return
    rows: list[tuple[Any, ...]] = [(result.submission_id, _state(result)) for result in results]
    table(("cancelled", "until then it"), rows, empty=f"{agent} has nothing to cancel.")


def _state(result: CancelResult) -> str:
    if result.previous_status == "running":
        return "was running"
    return "was waiting for another attempt" if result.messages_applied else "had not started"
