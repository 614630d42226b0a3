"""`submit`, `chat`, `wait`, `tail`: hand in messages and follow what becomes of them."""

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import Annotated

import typer

from think_celery.cli.context import Agent, Json, SubmissionId, Timeout, command, handle, json_object
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import complain, console, print_json, write
from think_celery.cli.speech import Speaker, outcome
from think_celery.core.frame import StreamEvent
from think_celery.core.message import message_text
from think_celery.core.submission import Receipt, Status, Submission
from think_celery.handle import AgentHandle

PANEL = "Conversations"


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "submit", panel=PANEL)(submit)
    command(app, "chat", panel=PANEL)(chat)
    command(app, "wait", panel=PANEL)(wait)
    command(app, "tail", panel=PANEL)(tail)


def submit(
    agent: Agent,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from standard input.")],
    submission_id: Annotated[
        str | None, typer.Option("--id", help="An id of your own, unique per agent.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key submits only once.")
    ] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object kept with it.")] = None,
    wait_for_it: Annotated[
        bool, typer.Option("--wait", help="Wait for the end and print the reply.")
    ] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> ExitCode | None:
    """Hand a message to an agent; returns as soon as it is safely stored."""
    about = json_object("metadata", metadata)
    to = handle(agent)
    receipt = to.submit_messages(
        sys.stdin.read() if text == "-" else text,
        submission_id=submission_id,
        idempotency_key=key,
        metadata=about,
    )
    if not wait_for_it:
        _print_receipt(agent, receipt, as_json=as_json)
        return None
    found = to.wait_for_submission(receipt.submission_id, timeout=timeout)
    if as_json:
        shown = (found or receipt).to_json()
        print_json({**shown, "accepted": receipt.accepted, "reply": _reply(to, found)})
        return _ending(agent, found, quiet=True)
    reply = _reply(to, found)
    if reply is not None:
        write(reply if reply.endswith("\n") else reply + "\n")
    return _ending(agent, found)


def chat(agent: Agent) -> ExitCode | None:
    """Talk to an agent: each line is a turn, the reply streams. Ctrl-C stops watching a turn, Ctrl-D ends."""
    to = handle(agent)
    worst: ExitCode | None = None
    if sys.stdin.isatty():
        console().print(f"[dim]Talking to[/dim] {agent}[dim]; Ctrl-D ends.[/dim]")
    for line in _lines():
        if not line.strip():
            continue
        receipt = to.submit_messages(line)
        try:
            worst = Speaker().follow(to.stream(receipt.submission_id)) or worst
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            write("\n")
            complain(f"the turn goes on; see `think-celery tail {agent} {receipt.submission_id}`")
    return None if sys.stdin.isatty() else worst


def wait(
    agent: Agent, submission_id: SubmissionId, timeout: Timeout = None, as_json: Json = False
) -> ExitCode | None:
    """Wait until a submission has ended."""
    found = handle(agent).wait_for_submission(submission_id, timeout=timeout)
    if found is not None and as_json:
        print_json(found.to_json())
    elif found is not None and found.status == Status.COMPLETED:
        write(f"{found.status}\n")
    return _ending(agent, found, quiet=as_json)


def tail(
    agent: Agent,
    submission_id: SubmissionId,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Only what follows this event id.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON event per line.")] = False,
) -> ExitCode | None:
    """Follow a turn: what it said so far, then live, up to its end; also long after the fact."""
    with contextlib.closing(_generator(handle(agent), submission_id, after)) as events:
        if not as_json:
            return Speaker().follow(events)
        status: str | None = None
        for event in events:
            write(event.model_dump_json(by_alias=True, exclude_none=True) + "\n")
            status = event.status or status
        if status is None:
            return ExitCode.NOT_FOUND
        return None if status == Status.COMPLETED else ExitCode.NEGATIVE


def _generator(to: AgentHandle, submission_id: str, after: str | None) -> Generator[StreamEvent]:
    yield from to.stream(submission_id, after=after)


def _lines() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` editing and history
    while True:
        try:
            yield input("> ")
        except EOFError:
            write("\n")
            return


def _print_receipt(agent: str, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        print_json(receipt.to_json())
        return
    if receipt.accepted:
        write(f"accepted {receipt.submission_id} at position {receipt.position}\n")
    else:
        write(f"known already: {receipt.submission_id} is {receipt.status}\n")
    if sys.stdout.isatty():
        console().print(
            f"[dim]follow it: think-celery tail {agent} {receipt.submission_id}[/dim]", soft_wrap=True
        )


def _reply(to: AgentHandle, found: Submission | None) -> str | None:
    if found is None or found.message_id is None:
        return None
    message = to.get_message(found.message_id)
    return None if message is None else message_text(message)


def _ending(agent: str, found: Submission | None, *, quiet: bool = False) -> ExitCode | None:
    if found is not None and not found.is_terminal:
        if not quiet:
            complain(
                f"still {found.status}; it goes on, see `think-celery wait {agent} {found.submission_id}`"
            )
        return ExitCode.TIMED_OUT
    if quiet:
        if found is None:
            return ExitCode.NOT_FOUND
        return None if found.status == Status.COMPLETED else ExitCode.NEGATIVE
    if found is None:
        return outcome(None, None)
    return outcome(found.status, found.error)
