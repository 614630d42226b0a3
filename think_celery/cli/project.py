"""`init` and `migrate`: a first agent, and the ledger's schema."""

import json
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from think_celery.cli.context import Json, adopt_stack, command
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import print_json, write
from think_celery.dev.agents import AGENTS_FILE
from think_celery.errors import InvalidInput, SchemaMismatch
from think_celery.settings import load_settings

PANEL = "Project"
_AGENTS = '''\
"""The agents of this project; `think-celery up` in this folder serves them."""

from think_celery import Think
{imports}

class TaskAgent(Think):
    def get_model(self):
        return {model}

    def get_system_prompt(self):
        return "You are a background task assistant."

    def get_tools(self):
        return [add]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''
_OFFLINE_IMPORT = "from think_celery.testing import scripted_model\n"
_OFFLINE_MODEL = """\
# Offline. For a real model: return "openai:gpt-5" (and set OPENAI_API_KEY), or any pydantic-ai model.
        return scripted_model(lambda text: f"You said: {text}")"""


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "init", panel=PANEL)(init)
    command(app, "migrate", panel=PANEL)(migrate)


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = Path("agents.py"),
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model, such as openai:gpt-5; default a script that needs no key."),
    ] = None,
) -> ExitCode | None:
    """Write a small agents.py to start from; never overwrites a file."""
    if model is None:
        body = _OFFLINE_MODEL
        text = _AGENTS.format(imports=_OFFLINE_IMPORT, model=body).replace("return # Offline", "# Offline")
    else:
        text = _AGENTS.format(imports="", model=json.dumps(model))
    if not file.name.removesuffix(".py").isidentifier() or file.suffix != ".py":
        raise InvalidInput("file", f"{file.name!r} cannot be imported; choose a name such as agents.py")
    try:
        with file.open("x") as stream:
            stream.write(text)
    except FileExistsError:
        raise InvalidInput("file", f"{file} exists already; move it away or name another one") from None
    except OSError as error:
        raise InvalidInput("file", f"{file} cannot be written ({error.strerror})") from None
    serve = "think-celery up" if file.name == AGENTS_FILE else f"THINK_AGENTS={file.stem} think-celery up"
    write(f"wrote {file}; to serve it: {serve}\n")
    return None


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it.")] = False,
    as_json: Json = False,
) -> ExitCode | None:
    """Create the ledger's schema or bring it up to date; safe to repeat, and from several hosts at once."""
    migrations = import_module("think_celery.ledger.migrate")  # Alembic; no other command needs it
    if sql:
        write(
            migrations.sql(load_settings(database_url="postgresql://not/used", redis_url="redis://not-used"))
        )
        return None
    adopt_stack()
    settings = load_settings()
    with suppress(SchemaMismatch):
        migrations.check(settings)  # says in one line when PostgreSQL cannot be reached
    revision = migrations.upgrade(settings)
    if as_json:
        print_json({"schema": settings.schema_name, "revision": revision})
    else:
        write(f"schema {settings.schema_name} is at revision {revision}\n")
    return None
