"""The end of processes that are not ours to bury."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psutil

from think_celery.dev.home import Home, locked
from think_celery.dev.program import await_end, stop_leftovers
from think_celery.dev.stack import down

PARENT = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], stdout=sys.stdout).pid, flush=True)
sys.stdin.read()
"""
SUPERVISOR = """
import signal, sys
from pathlib import Path
from think_celery.dev.home import Home, locked
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with locked(Home(Path(sys.argv[1]))):
    print("locked", flush=True)
    signal.pause()
"""


@contextmanager
def careless_parent(code: str, *arguments: str) -> Iterator[tuple[psutil.Process, list[str]]]:
    """Run code below a parent that never buries it; yields the process and its first lines."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip(), parent.stdout.readline().strip()]
        try:
            yield psutil.Process(int(next(line for line in lines if line.isdigit()))), lines
        finally:
            parent.kill()


def test_a_zombie_has_ended() -> None:
    with careless_parent("import signal; print('up', flush=True); signal.pause()") as (process, _):
        assert await_end([process], seconds=0.05) == [process]
        begun = monotonic()
        stop_leftovers([process])
        assert process.status() == psutil.STATUS_ZOMBIE
        assert await_end([process], seconds=10) == []
        assert monotonic() - begun < 5


def test_down_does_not_wait_for_the_burial_of_the_supervisor(place: Path) -> None:
    home = Home(place / "home")
    home.create()
    with careless_parent(SUPERVISOR, str(home.folder)) as (process, lines):
        assert "locked" in lines
        begun = monotonic()
        stopped = down(home)
        assert stopped.was_running
        assert process.status() == psutil.STATUS_ZOMBIE
        assert monotonic() - begun < 10
    with locked(home) as mine:
        assert mine
