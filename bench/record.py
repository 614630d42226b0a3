"""What task bodies leave behind, ours and the floors' alike: one line each, the only judge of order.

Workers of the same measurement append to one file; a single short write to an O_APPEND file is not torn.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

FOLDER_VARIABLE = "BENCH_RECORD"
_WIDTH = 80


@dataclass(frozen=True, slots=True, order=True)
class Ran:
    """One body; times are CLOCK_MONOTONIC, which all processes of a machine share."""

    started_ns: int
    ended_ns: int
    key: str
    number: int


def note(key: str, number: int, started_ns: int) -> None:
    """Record a body that ends now; negative numbers are warm-up."""
    line = f"{key} {number} {started_ns} {time.monotonic_ns()}"
    os.write(_descriptor(os.getpid()), f"{line:<{_WIDTH - 1}}\n".encode())


def count(folder: Path) -> int:
    """Return how many bodies were recorded, warm-up included."""
    file = folder / "bodies"
    return file.stat().st_size // _WIDTH if file.exists() else 0


def read(folder: Path) -> list[Ran]:
    """Return the bodies that count, in order of their start."""
    file = folder / "bodies"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    found = (Ran(int(start), int(end), key, int(number)) for key, number, start, end in lines)
    return sorted(ran for ran in found if ran.number >= 0)


def violations(bodies: Iterable[Ran]) -> dict[str, int]:
    """Count what ordered execution forbids, per key: a later number first, two at once, one twice.

    Args:
        bodies: In order of their start; numbers rise in order of submission.
    """
    by_key: defaultdict[str, list[Ran]] = defaultdict(list)
    for body in bodies:
        by_key[body.key].append(body)
    pairs = [pair for key in by_key.values() for pair in pairwise(key)]
    return {
        "disorders": sum(later.number < earlier.number for earlier, later in pairs),
        "overlaps": sum(later.started_ns < earlier.ended_ns for earlier, later in pairs),
        "repeats": sum(len(key) - len({body.number for body in key}) for key in by_key.values()),
    }


def ready(folder: Path) -> int:
    """Return how many workers have said that they consume."""
    return len(list(folder.glob("ready-*")))


def _is_ready(**_: Any) -> None:
    (Path(os.environ[FOLDER_VARIABLE]) / f"ready-{os.getpid()}").touch()


worker_ready.connect(_is_ready, weak=False)


@lru_cache
def _descriptor(pid: int) -> int:
    """Open the file once per process; the argument keeps a forked child from using its parent's."""
    del pid
    return os.open(Path(os.environ[FOLDER_VARIABLE]) / "bodies", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
