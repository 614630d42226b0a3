"""How commands speak: tables for people or JSON for machines on standard output, faults on standard error."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 200  # a table that is piped on must not be cut at 80 columns
_STATUS_STYLES = {
    "pending": "yellow",
    "running": "cyan",
    "completed": "green",
    "aborted": "magenta",
    "skipped": "magenta",
    "error": "red",
}


def console() -> Console:
    """Return a console on the present standard output."""
    return Console(highlight=False, width=None if _is_for_people() else _PIPE_WIDTH)


def _is_for_people() -> bool:
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def complain(text: str) -> None:
    """Say on standard error what went wrong."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        Text.assemble(("think-celery: ", "red"), text)
    )


def print_json(value: Any) -> None:
    """Print one JSON document: indented on a terminal, one line in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    write(json.dumps(value, ensure_ascii=False, indent=indent, default=str) + "\n")


def write(text: str) -> None:
    """Print text as it is, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, upright: bool = False
) -> None:
    """Print a table, or a sentence if it has no rows.

    Args:
        upright: Leave columns without any content out, and print a block of lines for each row on a terminal
            that is too narrow for the table.
    """
    lines = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    if not lines:
        console().print(empty)
        return
    kept = [number for number in range(len(columns)) if not upright or any(line[number] for line in lines)]
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number in kept:
        grid.add_column(columns[number], overflow="fold", no_wrap=number == 0)  # a name stays whole
    for line in lines:
        grid.add_row(*(line[number] for number in kept))
    screen = console()
    wide = screen.measure(grid, options=screen.options.update(max_width=10_000)).maximum
    if not upright or wide <= screen.width:
        screen.print(grid)
    elif _is_for_people():
        for line in lines:
            screen.print(line[0], style="bold")
            pairs([(f"  {columns[number]}", line[number] or None) for number in kept[1:]])
    else:
        Console(highlight=False, width=wide).print(grid)  # a line stays a line, for grep


def pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one per line; values that are None are left out."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    console().print(grid)


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=_STATUS_STYLES.get(status, ""))


def ago(moment: datetime | None) -> str:
    """Return how long ago a moment was, roughly."""
    return "" if moment is None else f"{duration((datetime.now(UTC) - moment).total_seconds())} ago"


def age(moment: datetime) -> str:
    """Return how long ago a moment was, for a column that says so in its head."""
    return took(moment, None)


def took(start: datetime | None, end: datetime | None) -> str:
    """Return the time between two moments, up to now for a missing end, and nothing for a missing start."""
    return "" if start is None else duration(((end or datetime.now(UTC)) - start).total_seconds())


def until(moment: datetime | None) -> str:
    """Return how far away a moment is, roughly, and nothing for one that has passed."""
    left = 0.0 if moment is None else (moment - datetime.now(UTC)).total_seconds()
    return duration(left) if left > 0 else ""


def duration(seconds: float) -> str:
    """Return seconds in a form that is short and readable.

    >>> [duration(n) for n in (-0.2, 0.0314, 1.25, 42, 75, 7300, 200_000)]
    ['0 ms', '31 ms', '1.2 s', '42 s', '1 min', '2 h', '2 d']
    """
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86_400:.0f} d"


def without_password(url: SecretStr) -> str:
    """Return an address that may be shown."""
    if "://" not in url.get_secret_value():
        return "***"  # a secret of its own, not an address that holds one
    scheme, _, rest = url.get_secret_value().partition("://")
    user, at, place = rest.rpartition("@")
    name = user.partition(":")[0]
    return f"{scheme}://{name}{at if name else ''}{place}"
