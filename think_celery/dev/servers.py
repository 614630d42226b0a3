"""The embedded servers of one data folder: which are needed, and how each is brought up and down."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Protocol

from think_celery.dev import program as programs
from think_celery.dev.home import Home, locked
from think_celery.dev.postgres import Postgres
from think_celery.dev.program import Program
from think_celery.dev.valkey import Valkey
from think_celery.errors import ServiceError, WrongContext

START_SECONDS = 60.0  # PostgreSQL may have to replay its log after a kill


class Server(Protocol):
    """What the embedded servers have in common."""

    name: str

    @property
    def url(self) -> str: ...
    def prepare(self) -> Program: ...
    def is_ready(self, pid: int) -> bool: ...
    def recover(self) -> bool: ...
    def failure(self) -> ServiceError: ...
    def clean(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the three services of a stack are."""

    database_url: str
    redis_url: str
    broker_url: str


def needed(home: Home, environ: Mapping[str, str], say: Callable[[str], None]) -> list[Server]:
    """Return the servers to embed: those whose address the environment does not name."""
    servers: list[Server] = []
    if not environ.get("THINK_DATABASE_URL"):
        servers.append(Postgres(home, say))
    if not environ.get("THINK_REDIS_URL"):
        servers.append(Valkey(home, say))
    return servers


def addresses(servers: list[Server], environ: Mapping[str, str]) -> Addresses:
    """Return the addresses of prepared servers, or the environment's where it names one."""
    own = {server.name: server.url for server in servers}
    redis_url = environ.get("THINK_REDIS_URL") or own["valkey"]
    return Addresses(
        database_url=environ.get("THINK_DATABASE_URL") or own["postgres"],
        redis_url=redis_url,
        broker_url=environ.get("THINK_BROKER_URL") or redis_url,
    )


def bring_up(
    server: Server, *, is_stopping: Callable[[], bool] = lambda: False
) -> "tuple[Program, subprocess.Popen[bytes]]":
    """Start a server and wait until it takes connections.

    Args:
        server: PostgreSQL or Valkey of a data folder.
        is_stopping: Asked while waiting; True ends the wait.

    Raises:
        KeyboardInterrupt: `is_stopping` said so.
        ServiceError: It did not, not even after giving up what stood in its way.
    """
    for _ in range(3):
        program = server.prepare()
        process = programs.start(program)
        try:
            if _wait_ready(server, process, is_stopping):
                return program, process
        except BaseException:  # Ctrl-C
            programs.stop(process, program)
            raise
        programs.stop(process, program)
        if not server.recover():
            break
    server.clean()
    raise server.failure()


def _wait_ready(server: Server, process: "subprocess.Popen[bytes]", is_stopping: Callable[[], bool]) -> bool:
    end = monotonic() + START_SECONDS
    while monotonic() < end:
        if is_stopping():
            raise KeyboardInterrupt
        if server.is_ready(process.pid):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            return False
    return False


@contextlib.contextmanager
def embedded_servers(folder: Path, *, say: Callable[[str], None] = lambda _: None) -> Iterator[Addresses]:
    """Run PostgreSQL and Valkey in a folder for the length of a `with` block; for tests and scripts.

    Args:
        folder: Data folder; its content is kept and used again.
        say: Told what had to be repaired.

    Raises:
        WrongContext: Another process runs servers in this folder.
        ServiceError: A server did not start.
    """
    home = Home(folder.resolve())
    home.create()
    with contextlib.ExitStack() as cleanup:
        if not cleanup.enter_context(locked(home)):
            raise WrongContext(f"a stack is already running in {home.folder}")
        programs.stop_leftovers(programs.leftovers(home.folder))
        servers = needed(home, {}, say)
        for server in servers:
            program, process = bring_up(server)
            cleanup.callback(server.clean)
            cleanup.callback(programs.stop, process, program)
        yield addresses(servers, {})
