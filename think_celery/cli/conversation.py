"""`submit`, `rerun`, `chat`, `wait`, `tail`: hand in messages and follow what becomes of them."""

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import Annotated

import typer

from think_celery.cli.context import Agent, Json, SubmissionId, Timeout, command, handle, json_object
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.moment import later, length
from think_celery.cli.output import complain, console, print_json, write
from think_celery.cli.speech import Speaker, outcome
from think_celery.core.frame import StreamEvent
from think_celery.core.message import message_text
from think_celery.core.submission import Receipt, Status, Submission
from think_celery.engine.admit import IfBusy
from think_celery.engine.reading import unserved
from think_celery.engine.runtime import default_runtime
from think_celery.handle import AgentHandle

PANEL = "Conversations"
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key submits only once.")]
WaitForIt = Annotated[bool, typer.Option("--wait", help="Wait for the end and print the reply.")]


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "submit", panel=PANEL)(submit)
    command(app, "rerun", panel=PANEL)(rerun)
    command(app, "chat", panel=PANEL)(chat)
    command(app, "wait", panel=PANEL)(wait)
    command(app, "tail", panel=PANEL)(tail)


def submit(
    agent: Agent,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from standard input.")],
    submission_id: Annotated[
        str | None, typer.Option("--id", help="An id of your own, unique per agent.")
    ] = None,
    key: Key = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object kept with it.")] = None,
    if_busy: Annotated[IfBusy, typer.Option(help="What to do when the agent has work.")] = "enqueue",
    not_before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start no earlier than in 10m, or an instant with its zone."),
    ] = None,
    not_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not started by then, it ends in error.")
    ] = None,
    run_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Running for longer (90s, 10m), it ends in error.")
    ] = None,
    wait_for_it: WaitForIt = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> ExitCode | None:
    """Hand a message to an agent; returns as soon as it is safely stored.

    --if-busy: enqueue waits in line; reject refuses (exit status 1); interrupt cancels what runs and waits,
    keeping what was said; rollback also takes the running turn's messages out of the conversation.
    """
    about = json_object("metadata", metadata)
    earliest, latest = later("--not-before", not_before), later("--not-after", not_after)
    limit = length("--run-timeout", run_timeout)
    to = handle(agent)
    receipt = to.submit_messages(
        sys.stdin.read() if text == "-" else text,
        submission_id=submission_id,
        idempotency_key=key,
        metadata=about,
        if_busy=if_busy,
        run_timeout=limit,
        not_before=earliest,
        not_after=latest,
    )
    _note_unserved(to)
    if wait_for_it:
        return _follow(agent, to, receipt, timeout=timeout, as_json=as_json)
    _print_receipt(agent, receipt, as_json=as_json)
    return None


def rerun(
    agent: Agent,
    submission_id: SubmissionId,
    key: Key = None,
    wait_for_it: WaitForIt = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> ExitCode | None:
    """Submit the messages of a submission once more, as a new one that names the old."""
    to = handle(agent)
    receipt = to.rerun(submission_id, idempotency_key=key)
    if receipt is None:
        complain(f"{agent} has no submission {submission_id!r}")
        return ExitCode.NOT_FOUND
    if wait_for_it:
        return _follow(agent, to, receipt, timeout=timeout, as_json=as_json)
    _print_receipt(agent, receipt, as_json=as_json)
    return None


def chat(agent: Agent) -> ExitCode | None:
    """Talk to an agent: each line is a turn, the reply streams. Ctrl-C stops watching a turn, Ctrl-D ends."""
    to = handle(agent)
    worst: ExitCode | None = None
    _note_unserved(to)
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
    to = handle(agent)
    known = to.inspect_submission(submission_id)
    if known is not None and known.status is Status.PENDING:
        _note_unserved(to)
    found = to.wait_for_submission(submission_id, timeout=timeout)
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


def _follow(
    agent: str, to: AgentHandle, receipt: Receipt, *, timeout: float | None, as_json: bool
) -> ExitCode | None:
    found = to.wait_for_submission(receipt.submission_id, timeout=timeout)
    if as_json:
        shown = (found or receipt).to_json()
        print_json({**shown, "accepted": receipt.accepted, "reply": _reply(to, found)})
        return _ending(agent, found, quiet=True)
    reply = _reply(to, found)
    if reply is not None:
        write(reply if reply.endswith("\n") else reply + "\n")
    return _ending(agent, found)


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


def _note_unserved(to: AgentHandle) -> None:
    """Say on standard error when nobody would run it: a misspelt class waits as patiently as a busy one."""
    why = unserved(default_runtime(), to.address)
    if why is not None:
        complain(f"note: {why}")
