"""`up --reload`: tells when Python files change."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from watchfiles import PythonFilter, watch

from think_celery.dev.console import StackConsole


@contextlib.contextmanager
def watching(folder: Path, changed: Callable[[str], None], console: StackConsole) -> Iterator[None]:
    """Watch a folder for the length of a `with` block.

    Args:
        folder: Watched with everything below it, except virtual environments, caches and the like.
        changed: Called in the watcher's thread with what happened, in a few words.
        console: Told when watching is impossible.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, changed, console, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _watch(
    folder: Path, changed: Callable[[str], None], console: StackConsole, over: threading.Event
) -> None:
    try:
        for changes in watch(
            folder,
            watch_filter=PythonFilter(),
            stop_event=over,
            ignore_permission_denied=True,
            raise_interrupt=False,
        ):
            changed(_summary(folder, sorted(path for _, path in changes)))
    except (OSError, RuntimeError) as error:  # the limit of watches is used up, for example
        console.say(f"--reload is off: {folder} cannot be watched ({error})", level="WARNING")


def _summary(folder: Path, paths: list[str]) -> str:
    first = Path(paths[0])
    shown = first.relative_to(folder) if first.is_relative_to(folder) else first
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{shown}{more} changed"
