"""What `up` prints: the children's lines with a coloured prefix, and the supervisor's own words."""

import re

from rich.console import Console
from rich.text import Text

_COLOURS = {"stack": "bold", "worker": "cyan", "beat": "magenta", "flower": "yellow", "postgres": "blue"}
_LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
_WIDTH = 8
_CELERY = re.compile(r"\[(?:\d{4}-\d\d-\d\d )?(\d\d:\d\d:\d\d),\d+: (\w+)/(\w+)\] (.*)")
_TORNADO = re.compile(r"\[([DIWEC]) \d{6} (\d\d:\d\d:\d\d) \S+\] (.*)")
_ROUTINE = re.compile(
    r".*\bthink\.sweep\b"  # beat's tick, every few seconds
    r"|Inspect method \w+ failed"  # Flower asks before the worker can answer
)
_TORNADO_LEVELS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "C": "CRITICAL"}


class StackConsole:
    """Prefixed lines on standard output; colours only on a terminal, and never with NO_COLOR.

    Args:
        console: Where to print; default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.rich = console or Console(highlight=False, soft_wrap=True)

    def say(self, text: str, *, level: str = "INFO") -> None:
        """Print a word of the supervisor."""
        for line in text.splitlines() or [""]:
            self._print("stack", Text(line, style=_LEVELS.get(level, "")))

    def line(self, name: str, raw: str) -> None:
        """Print one line of a child, in a common form where its format is known; routine is left out."""
        if raw.strip() and not is_routine(raw):
            self._print(name, readable(raw))

    def _print(self, name: str, text: Text) -> None:
        prefix = (f"{name:<{_WIDTH}} │ ", _COLOURS.get(name, "green"))
        self.rich.print(Text.assemble(prefix, text), soft_wrap=True, highlight=False)


def is_routine(raw: str) -> bool:
    """True for a line that comes all the time and tells nothing.

    >>> is_routine("[2026-01-31 12:00:01,250: INFO/MainProcess] Task think.sweep[7f] received")
    True
    >>> is_routine("[2026-01-31 12:00:01,250: ERROR/MainProcess] Task think.sweep[7f] raised unexpected")
    False
    """
    if found := _CELERY.fullmatch(raw.rstrip()):
        return found[2] in {"INFO", "DEBUG"} and _ROUTINE.match(found[4]) is not None
    found = _TORNADO.fullmatch(raw.rstrip())
    return found is not None and found[1] in {"I", "W"} and _ROUTINE.match(found[3]) is not None


def readable(raw: str) -> Text:
    """Return a child's line as time, level and message if it is Celery's or Flower's, else as it is.

    >>> readable("[2026-01-31 12:00:01,250: WARNING/MainProcess] hello").plain
    '12:00:01 WARNING hello'
    >>> readable("[I 260131 12:00:01 command:168] hello").plain
    '12:00:01 hello'
    >>> readable("Traceback (most recent call last):").plain
    'Traceback (most recent call last):'
    """
    if found := _CELERY.fullmatch(raw.rstrip()):
        time, level, _, message = found.groups()
    elif found := _TORNADO.fullmatch(raw.rstrip()):
        letter, time, message = found.groups()
        level = _TORNADO_LEVELS[letter]
    else:
        return Text.from_ansi(raw.rstrip())
    shown = "" if level == "INFO" else f"{level} "
    style = _LEVELS.get(level, "dim" if level == "DEBUG" else "")
    return Text.assemble((f"{time} ", "dim"), (shown, style), Text.from_ansi(message, style=style))
