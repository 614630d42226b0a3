"""`make demo`: the main job, for real, in a temporary folder; status 0 means that every promise held.

Nothing is scripted but the model's words: PostgreSQL, Valkey, the Celery worker and Flower are the real ones,
and what is shown is read back from them.
"""

import json
import sys
import tempfile
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from think_celery import AgentHandle, Receipt, StreamEvent, Submission, message_text
from think_celery.core.submission import Status
from think_celery.dev.local import local_stack
from think_celery.dev.state import Stack
from think_celery.errors import ServiceError

_NAMES = ("alice", "bob", "carol")
_out = Console(highlight=False)


class PromiseBroken(Exception):
    """Something that this demonstration claims did not hold."""


def main() -> None:
    """Run the demonstration and exit."""
    try:
        with tempfile.TemporaryDirectory(prefix="think-demo-") as folder, _stack(Path(folder)) as stack:
            _show(stack)
    except (PromiseBroken, ServiceError) as error:
        _out.print(f"\n[bold red]the demonstration failed:[/] {error}")
        sys.exit(1)
    _out.print("\n[bold green]every promise held[/]; the stack is stopped and its folder removed")


def _show(stack: Stack) -> None:
    begun = monotonic()
    receipts = _accept()
    _retry()
    _stream()
    _order(receipts)
    _look(receipts)
    _flower(stack)
    _out.print(f"\nshown in {monotonic() - begun:.1f} s")


def _accept() -> dict[str, list[Receipt]]:
    _chapter("1. Receipts first", "nine messages for three agents: each call returns before any model runs")
    receipts: dict[str, list[Receipt]] = {name: [] for name in _NAMES}
    table = Table("agent", "message", "submission", "status", "took", box=None, header_style="bold")
    for number in (1, 2, 3):
        for name in _NAMES:
            begun = monotonic()
            receipt = _agent(name).submit_messages(f"task {number}", metadata={"demo": True})
            took = (monotonic() - begun) * 1000
            _require(receipt.accepted and receipt.status is Status.PENDING, "a receipt is pending")
            receipts[name].append(receipt)
            table.add_row(
                receipt.agent, f"task {number}", receipt.submission_id[:8], receipt.status, f"{took:.1f} ms"
            )
    _out.print(table)
    return receipts


def _retry() -> None:
    _chapter("2. Retry safely", "the same idempotency key twice: one submission")
    agent = _agent("dave")
    first = agent.submit_messages("Where is order 42?", idempotency_key="webhook-event-123")
    again = agent.submit_messages("Where is order 42?", idempotency_key="webhook-event-123")
    for receipt in (first, again):
        _out.print(f"   accepted={receipt.accepted!s:5}  {receipt.submission_id}")
    _require(first.accepted and not again.accepted, "the first call is accepted, the second is not")
    _require(first.submission_id == again.submission_id, "both calls name one submission")


def _stream() -> None:
    _chapter(
        "3. Watch it stream", "word by word while the worker talks, and again for a reader who comes late"
    )
    agent = _agent("dave")
    submission_id = agent.list_submissions()[0].submission_id
    _out.print("   live  ", end="")
    live = _read(agent, submission_id, aloud=True)
    late = _read(agent, submission_id, aloud=False)
    _out.print(f"   late  {late}")
    row = agent.inspect_submission(submission_id)
    _require(row is not None and row.status is Status.COMPLETED, "the turn is completed")
    stored = message_text(agent.get_message((row.message_id if row else None) or "") or {})
    _require(live == late == stored, "live reader, late reader and stored message say the same")
    _out.print("   both equal the stored message, byte for byte")


def _read(agent: AgentHandle, submission_id: str, *, aloud: bool) -> str:
    said: list[str] = []
    events: Iterator[StreamEvent] = agent.stream(submission_id)
    for event in events:
        chunk = event.chunk or {}
        if chunk.get("type") == "text-delta":
            said.append(chunk["delta"])
            if aloud:
                _out.print(chunk["delta"], end="", markup=False, soft_wrap=True)
        elif chunk.get("type") == "tool-input-available" and aloud:
            _out.print(f"\\[calls {chunk['toolName']}] ", end="", style="dim")
        elif event.kind == "end" and aloud:
            _out.print(f"  [dim]({event.status})[/]")
    return "".join(said)


def _order(receipts: dict[str, list[Receipt]]) -> None:
    _chapter(
        "4. In order, side by side",
        "each agent answers one message at a time; agents do not wait for each other",
    )
    rows = {name: [_ended(name, receipt) for receipt in given] for name, given in receipts.items()}
    start = min(row.started_at for turns in rows.values() for row in turns if row.started_at)
    scale = 60 / max(
        (row.completed_at - start).total_seconds() for t in rows.values() for row in t if row.completed_at
    )
    for name, turns in rows.items():
        line = [" "] * 62
        for number, row in enumerate(turns, 1):
            assert row.started_at is not None
            assert row.completed_at is not None
            begin = int((row.started_at - start).total_seconds() * scale)
            end = max(begin + 1, int((row.completed_at - start).total_seconds() * scale))
            line[begin:end] = [str(number)] * (end - begin)
        _out.print(f"   {name:6}|{''.join(line)}", markup=False)
        for earlier, later in pairwise(turns):
            _require(_before(earlier, later), f"{name}: one turn at a time, in order of acceptance")
    spans = [(turns[0].started_at, turns[-1].completed_at) for turns in rows.values()]
    latest, earliest = max(s for s, _ in spans if s), min(e for _, e in spans if e)
    _require(latest < earliest, "the three agents work at the same time")


def _ended(name: str, receipt: Receipt) -> Submission:
    row = _agent(name).wait_for_submission(receipt.submission_id, timeout=30)
    _require(row is not None and row.status is Status.COMPLETED, f"{name}: the turn is completed")
    assert row is not None
    _require(
        row.started_at is not None and receipt.created_at <= row.started_at, "accepted before it started"
    )
    return row


def _before(earlier: Submission, later: Submission) -> bool:
    return bool(earlier.completed_at and later.started_at and earlier.completed_at <= later.started_at)


def _look(receipts: dict[str, list[Receipt]]) -> None:
    _chapter("5. Look it up", "the same as `think-celery list TaskAgent/alice` and `think-celery inspect …`")
    table = Table(
        "position", "submission", "status", "attempt", "accepted", "took", box=None, header_style="bold"
    )
    listed = _agent("alice").list_submissions()
    for row in listed:
        took = (
            (row.completed_at - row.started_at).total_seconds() if row.completed_at and row.started_at else 0
        )
        table.add_row(
            str(row.position), row.submission_id[:8], row.status, str(row.attempt),
            f"{row.created_at:%H:%M:%S} UTC", f"{took:.2f} s",
        )  # fmt: skip
    _out.print(table)
    _require([row.position for row in listed] == [3, 2, 1], "the list has every submission, youngest first")
    first = _agent("alice").inspect_submission(receipts["alice"][0].submission_id)
    _require(first is not None, "inspect finds it")
    assert first is not None
    _out.print_json(json.dumps(first.to_json()))


def _flower(stack: Stack) -> None:
    _chapter("6. Flower", "Celery's own monitor: password, read-only, reachable from this machine only")
    url, user, password = stack.flower_url or "", stack.flower_user or "", stack.flower_password or ""
    _require(_status(url) == 401, "Flower asks for a password")
    token = b64encode(f"{user}:{password}".encode()).decode()
    _require(_status(url, Authorization=f"Basic {token}") == 200, "Flower answers")
    _out.print(f"   {url}  (while the stack runs)")


def _status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        raise PromiseBroken(f"Flower at {url} cannot be reached: {error}") from error


@contextmanager
def _stack(folder: Path) -> Iterator[Stack]:
    """Run a stack in a folder, and say how that goes."""
    with ExitStack() as cleanup:
        with _out.status("starting PostgreSQL, Valkey, a Celery worker, beat and Flower …"):
            begun = monotonic()
            stack = cleanup.enter_context(local_stack(folder))
        took = monotonic() - begun
        _out.print(f"PostgreSQL 18, Valkey 9, worker, beat and Flower are ready after {took:.1f} s")
        try:
            yield stack
        finally:
            with _out.status("stopping the stack …"):
                cleanup.close()


def _agent(name: str) -> AgentHandle:
    return AgentHandle("TaskAgent", name)


def _chapter(title: str, subtitle: str) -> None:
    _out.print()
    _out.print(Rule(f"[bold]{title}[/]", align="left", style="dim"))
    _out.print(f"[dim]{subtitle}[/]\n")


def _require(held: bool, promise: str) -> None:
    if not held:
        raise PromiseBroken(f"“{promise}” did not hold")


if __name__ == "__main__":
    main()
