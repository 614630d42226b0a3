"""`up` and `down`: servers, schema and children of one data folder, from the first start to the last word."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import psutil

from think_celery.dev import children, servers, state
from think_celery.dev import program as programs
from think_celery.dev.agents import choose_agents
from think_celery.dev.console import StackConsole
from think_celery.dev.home import Home, holder, locked
from think_celery.dev.reload import watching
from think_celery.dev.state import Stack
from think_celery.dev.supervisor import Supervisor
from think_celery.errors import LedgerUnavailable, SchemaMismatch, ThinkError
from think_celery.ledger import migrate, workers
from think_celery.ledger.database import Database
from think_celery.settings import Settings, load_settings

_STOP_SECONDS = 40.0
_PLACEHOLDERS = {"THINK_DATABASE_URL": "postgresql://later", "THINK_REDIS_URL": "redis://later"}
_SERVER_STAGE, _CHILD_STAGE = 0, 1


@dataclass(frozen=True, slots=True)
class Stopped:
    """What `down` did.

    Attributes:
        was_running: A supervisor was there.
        leftovers: Processes of a killed stack that were ended, by name.
    """

    was_running: bool
    leftovers: tuple[str, ...]


class AlreadyRunning(ThinkError):
    """Another process runs the stack of this folder; not a failure of `up`."""


def up(home: Home, *, reload: bool, environ: Mapping[str, str], console: StackConsole) -> None:
    """Run the stack of a data folder until a signal asks to stop; needs the main thread.

    Args:
        home: The data folder; made if need be.
        reload: Restart the worker when Python files change.
        environ: Settings of the caller; servers that it names are used instead of embedded ones.
        console: Where everything is said.

    Raises:
        AlreadyRunning: The folder's stack runs already.
        InvalidSettings: A setting or the folder cannot be used.
        ServiceError: A server did not start or cannot be reached.
    """
    given = {name: text for name, text in environ.items() if text}
    load_settings({**_PLACEHOLDERS, **given})  # a wrong name should not cost the start of the servers
    home.create()
    with locked(home) as mine:
        if not mine:
            raise AlreadyRunning
        _clear(home, console)
        run = _Run(home, environ, console)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(state.forget, home)
            cleanup.enter_context(run.supervisor)
            with contextlib.suppress(KeyboardInterrupt):
                run.start(cleanup)
                if reload:
                    cleanup.enter_context(watching(Path.cwd(), run.supervisor.reload, console))
                run.supervisor.run(is_ready=run.is_ready)
            console.say("stopping")
        console.say("stopped")


def down(home: Home) -> Stopped:
    """Stop the stack of a data folder from another process, and whatever a killed one left behind."""
    pid = holder(home)
    if pid is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(pid)
            supervisor.send_signal(signal.SIGTERM)
            if programs.await_end([supervisor], seconds=_STOP_SECONDS):
                supervisor.kill()
                programs.await_end([supervisor], seconds=_STOP_SECONDS)
    left = programs.leftovers(home.folder)
    names = tuple(sorted(_name(process) for process in left))
    programs.stop_leftovers(left)
    if holder(home) is None:
        state.forget(home)
    return Stopped(was_running=pid is not None, leftovers=names)


class _Run:
    """One life of a stack, under the lock of its folder."""

    def __init__(self, home: Home, environ: Mapping[str, str], console: StackConsole) -> None:
        self.supervisor = Supervisor(console, self._note)
        self._home = home
        self._environ = environ
        self._console = console
        self._agents, self._why = choose_agents(environ, Path.cwd())
        self._flower = children.prepare_flower(home, environ)
        self._started_at = datetime.now(UTC)
        self._addresses: servers.Addresses | None = None
        self._types: tuple[str, ...] = ()
        self._ready = False
        self._database: Database | None = None

    def start(self, cleanup: contextlib.ExitStack) -> None:
        """Bring up the servers, then the schema, then the children."""
        begun = monotonic()
        embedded = servers.needed(self._home, self._environ, self._console.say)
        for server in embedded:
            program, process = servers.bring_up(server, is_stopping=lambda: self.supervisor.is_stopping)
            # Registered before the supervisor's own end, so it runs after it.
            cleanup.callback(server.clean)
            self.supervisor.add(program, stage=_SERVER_STAGE, process=process)
        addresses = servers.addresses(embedded, self._environ)
        settings = _settings(self._environ, addresses)
        with contextlib.suppress(SchemaMismatch):
            migrate.check(settings)  # says in one line when PostgreSQL cannot be reached
        revision = migrate.upgrade(settings)
        self._say_servers(embedded, revision, monotonic() - begun)
        self._addresses = addresses
        self._database = Database(settings)
        cleanup.callback(self._database.close)
        self._start_children(settings, addresses)

    def _start_children(self, settings: Settings, addresses: servers.Addresses) -> None:
        folder = Path.cwd()
        environ = children.child_environ(self._home, addresses, self._agents, self._environ)
        self._console.say(
            f"starting worker, beat and Flower; agents: {', '.join(self._agents)} ({self._why})"
        )
        for program in (
            children.worker(settings, folder, environ),
            children.beat(settings, self._home, folder, environ),
            children.flower(self._flower, folder, environ),
        ):
            self.supervisor.add(program, stage=_CHILD_STAGE)

    def is_ready(self) -> bool:
        """Look once whether the worker takes turns, and say so when it does."""
        worker = next((child for child in self.supervisor.children if child.name == "worker"), None)
        if worker is None or worker.process is None or self._database is None:
            return False
        mine = _family(worker.process.pid)
        try:
            found = workers.present(self._database)
        except (LedgerUnavailable, SchemaMismatch):
            return False
        here = [
            p for p in found if p.alive and p.worker.pid in mine and p.worker.host == socket.gethostname()
        ]
        if here:
            self._types = tuple(here[0].worker.agent_types)
            self._ready = True
            self._note()
            self._say_ready()
        return bool(here)

    def _note(self) -> None:
        """Write the state file; nothing before the schema is there, because others act on it."""
        if self._addresses is None:
            return
        found = {child.name: child.state() for child in self.supervisor.children}
        pids = {name: child.pid for name, child in found.items() if child.pid is not None}
        state.write(
            self._home,
            Stack(
                database_url=self._addresses.database_url,
                redis_url=self._addresses.redis_url,
                broker_url=self._addresses.broker_url,
                flower_url=self._flower.url,
                flower_user=self._flower.user,
                flower_password=self._flower.password,
                agents=self._agents,
                agent_types=self._types,
                ready=self._ready,
                folder=str(Path.cwd()),
                pids={"supervisor": os.getpid(), **pids},
                children=found,
                started_at=self._started_at,
            ),
        )

    def _say_servers(self, embedded: "list[servers.Server]", revision: str, seconds: float) -> None:
        titles = {"postgres": "PostgreSQL 18", "valkey": "Valkey 9"}
        own = " and ".join(titles[server.name] for server in embedded) or "no embedded server needed"
        self._console.say(
            f"{own} up after {seconds:.1f} s, schema at revision {revision}; data in {self._home.folder}"
        )

    def _say_ready(self) -> None:
        example = "TaskAgent" if "TaskAgent" in self._types or not self._types else self._types[0]
        flower = self._flower
        for line in (
            f"ready; agents: {', '.join(self._types) or 'none'}",
            f"Flower  {flower.url}  user {flower.user}  password {flower.password}",
            f'try     think-celery submit {example}/alice "hello" --wait',
            "stop    Ctrl-C here, or `think-celery down` in another terminal",
        ):
            self._console.say(line)


def _settings(environ: Mapping[str, str], addresses: servers.Addresses) -> Settings:
    return load_settings(
        environ,
        database_url=addresses.database_url,
        redis_url=addresses.redis_url,
        broker_url=addresses.broker_url,
    )


def _clear(home: Home, console: StackConsole) -> None:
    """End what a killed stack left running; its lock is ours, so nothing of it can be wanted."""
    left = programs.leftovers(home.folder)
    if left:
        names = ", ".join(sorted(_name(process) for process in left))
        console.say(
            f"an earlier stack of this folder was killed; ending what it left: {names}", level="WARNING"
        )
        programs.stop_leftovers(left)
    state.forget(home)


def _family(pid: int) -> set[int]:
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        name = process.name()
        return "python" if name == os.path.basename(sys.executable) else name
    return "?"
