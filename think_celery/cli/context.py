"""What every command shares: the call's guard, the way to the running stack, the common arguments."""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec

import typer

from think_celery.cli.exit_code import ExitCode, epilog
from think_celery.cli.output import complain
from think_celery.core.address import Address
from think_celery.dev import state
from think_celery.dev.home import holder, home_nearby
from think_celery.engine.runtime import Runtime, default_runtime
from think_celery.errors import CallerError, InvalidInput, ServiceError, StackNotRunning, StateConflict
from think_celery.handle import AgentHandle

P = ParamSpec("P")

Agent = Annotated[
    str, typer.Argument(metavar="AGENT", help="Which agent: Type/name, such as TaskAgent/alice.")
]
SubmissionId = Annotated[str, typer.Argument(metavar="ID", help="The submission's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="Give up waiting after so long.", min=0)
]

Metadata = Annotated[
    str | None,
    typer.Option("--metadata", metavar="JSON", help="Only those whose metadata contains this JSON object."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can answer.")]

_open: list[Runtime] = []


def command(
    app: typer.Typer, name: str, *, panel: str, raw: bool = False
) -> Callable[[Callable[P, ExitCode | None]], Callable[P, None]]:
    """Register a command: its expected faults become one line on standard error and an exit status.

    Args:
        app: Where to register.
        name: What the user types.
        panel: The group in `--help`.
        raw: Hand unknown options on to the command.
    """

    def register(function: Callable[P, ExitCode | None]) -> Callable[P, None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            code = _guard(lambda: function(*args, **kwargs))
            if code:
                raise typer.Exit(int(code))

        guarded.__annotations__ = {**function.__annotations__, "return": None}
        settings = {"allow_extra_args": True, "ignore_unknown_options": True} if raw else None
        app.command(name, rich_help_panel=panel, epilog=epilog(), context_settings=settings)(guarded)
        return guarded

    return register


def group(app: typer.Typer, name: str, *, panel: str, alone: Callable[P, ExitCode | None]) -> typer.Typer:
    """Register a command that has commands below it.

    Args:
        app: Where to register.
        name: What the user types.
        panel: The group in `--help`.
        alone: What it does when nothing follows.
    """
    below = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})

    def guarded(context: typer.Context, **arguments: Any) -> None:
        if context.invoked_subcommand is None:
            code = _guard(functools.partial(alone, **arguments))
            if code:
                raise typer.Exit(int(code))

    # Typer reads both: what the command takes, and before it the context, which only we need.
    given = inspect.signature(alone).parameters.values()
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    guarded.__signature__ = inspect.Signature([context, *given])  # type: ignore[attr-defined]
    guarded.__annotations__ = {"context": typer.Context, **alone.__annotations__, "return": None}
    guarded.__doc__ = alone.__doc__
    below.callback(invoke_without_command=True, epilog=epilog())(guarded)
    app.add_typer(below, name=name, rich_help_panel=panel)
    return below


def _guard(call: Callable[[], ExitCode | None]) -> ExitCode | None:
    try:
        return call()
    except CallerError as error:
        complain(str(error))
        return ExitCode.WRONG_CALL
    except StateConflict as error:
        complain(str(error))
        return ExitCode.NEGATIVE
    except ServiceError as error:
        complain(_with_hint(error))
        return ExitCode.UNREACHABLE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    finally:
        while _open:
            _open.pop().close()


def connect() -> Runtime:
    """Return this process' runtime, on the servers of the environment or of the running local stack.

    Raises:
        StackNotRunning: There are neither.
    """
    adopt_stack()
    runtime = default_runtime()
    _open.append(runtime)
    return runtime


def handle(agent: str) -> AgentHandle:
    """Return a connected handle for a `Type/name` argument."""
    address = Address.parse(agent)
    return AgentHandle(address.type_name, address.name, runtime=connect())


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask on the terminal before something that cannot be undone.

    Args:
        question: What is about to happen.
        yes: The caller has answered already.

    Raises:
        InvalidInput: Nobody can be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidInput("--yes", f"is needed, because nobody can be asked: {question}")
    sys.stderr.write(f"{question} [y/N] ")  # standard output may be read by a program
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return True
    complain("nothing was changed")
    return False


def adopt_stack() -> state.Stack | None:
    """Let the environment name the running local stack's servers, where it names none itself.

    Returns:
        The stack, if one runs.

    Raises:
        StackNotRunning: A server is missing and no stack runs.
    """
    home = home_nearby()
    stack = state.running(home)
    complete = all(os.environ.get(name) for name in ("THINK_DATABASE_URL", "THINK_REDIS_URL"))
    if stack is not None:
        if not os.environ.get("THINK_REDIS_URL"):  # a Redis of the caller's is the caller's broker as well
            os.environ["THINK_REDIS_URL"] = stack.redis_url
            os.environ["THINK_BROKER_URL"] = os.environ.get("THINK_BROKER_URL") or stack.broker_url
        os.environ["THINK_DATABASE_URL"] = os.environ.get("THINK_DATABASE_URL") or stack.database_url
        return stack
    if complete:
        return None
    if holder(home) is not None:
        raise StackNotRunning(f"the local stack in {home.folder} is still starting; try again in a moment")
    if home.state_file.exists():
        raise StackNotRunning(
            f"the local stack in {home.folder} was killed; start it again with `think-celery up`"
        )
    raise StackNotRunning(
        "no servers: start a local stack here with `think-celery up`, "
        "or set THINK_DATABASE_URL and THINK_REDIS_URL"
    )


def json_object(field: str, text: str | None) -> dict[str, Any] | None:
    """Return a JSON object given on the command line.

    Raises:
        InvalidInput: It is no JSON object.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(
            field, f'is not JSON ({error}); write for example \'{{"source": "cli"}}\''
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(field, f"must be a JSON object, not {type(value).__name__}")
    return value


def _with_hint(error: ServiceError) -> str:
    if isinstance(error, StackNotRunning) or state.running(home_nearby()) is not None:
        return str(error)
    return f"{error} (`think-celery doctor` looks closer)"
