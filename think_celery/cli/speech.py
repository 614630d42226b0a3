"""A turn's events as text in the terminal."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import complain, console, write
from think_celery.core.frame import StreamEvent
from think_celery.core.message import message_text
from think_celery.core.submission import Status

_SHOWN = 120


class Speaker:
    """Prints a turn as it streams: the answer's text as it is, the rest dimmed and only on a terminal."""

    def __init__(self) -> None:
        self._chatty = sys.stdout.isatty()
        self._mid_line = False
        self._spoken = False

    def follow(self, events: Iterable[StreamEvent]) -> ExitCode | None:
        """Print events up to the end, and return what the end means for the exit status."""
        for event in events:
            if event.kind == "chunk" and event.chunk is not None:
                self._chunk(event.chunk)
            elif event.kind in {"reset", "gap"}:
                self._aside(
                    "the turn starts again" if event.kind == "reset" else "some of the stream is missing"
                )
                self._spoken = False
            elif event.kind == "end":
                return self._end(event)
        return None

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        kind = chunk.get("type")
        if kind == "text-delta":
            self._text(str(chunk.get("delta", "")))
        elif kind == "text-end":
            self._new_line()
        elif kind == "reasoning-delta":
            self._thought(str(chunk.get("delta", "")))
        elif kind == "reasoning-end":
            self._new_line()
        elif kind == "tool-input-available":
            self._aside(f"→ {chunk.get('toolName')}({_short(chunk.get('input'))})")
        elif kind == "tool-output-available":
            self._aside(f"← {_short(chunk.get('output'))}")
        elif kind == "tool-output-error":
            self._aside(f"← failed: {_short(chunk.get('errorText'))}")

    def _end(self, event: StreamEvent) -> ExitCode | None:
        if event.message is not None and not self._spoken:
            self._text(message_text(event.message))
        self._new_line()
        return outcome(event.status, event.error)

    def _text(self, text: str) -> None:
        if text:
            write(text)
            self._mid_line = not text.endswith("\n")
            self._spoken = True

    def _thought(self, text: str) -> None:
        if self._chatty and text:
            console().print(Text(text, style="dim italic"), end="", soft_wrap=True)
            self._mid_line = not text.endswith("\n")

    def _aside(self, text: str) -> None:
        if self._chatty:
            self._new_line()
            console().print(Text(text, style="dim"), soft_wrap=True)

    def _new_line(self) -> None:
        if self._mid_line:
            write("\n")
            self._mid_line = False


def outcome(status: str | None, error: str | None) -> ExitCode | None:
    """Say how a submission ended unless it is completed, and return the exit status for it."""
    if status is None:
        complain("there is no such submission")
        return ExitCode.NOT_FOUND
    if status == Status.COMPLETED:
        return None
    complain(f"the submission ended in {status}" + (f": {error}" if error else ""))
    return ExitCode.NEGATIVE


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={json.dumps(item, ensure_ascii=False)}" for name, item in value.items())
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
