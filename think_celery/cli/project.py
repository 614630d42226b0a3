"""`init` and `migrate`: a first agent, and the ledger's schema."""

from pathlib import Path
from typing import Annotated

import typer

from think_celery.cli.context import Json, adopt_stack, command
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import print_json, write
from think_celery.errors import InvalidInput
from think_celery.ledger import migrate as migrations
from think_celery.settings import load_settings

PANEL = "Project"
_AGENTS = '''\
"""The agents of this project; `think-celery up` serves them."""

from think_celery import Think


class TaskAgent(Think):
    def get_model(self):
        return "openai:gpt-5"  # or any pydantic-ai model; set OPENAI_API_KEY

    def get_system_prompt(self):
        return "You are a background task assistant."

    def get_tools(self):
        return [add]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''
_OFFLINE_MODEL = '''\
        return scripted_model(lambda text: f"You said: {text}")  # for a real one: return "openai:gpt-5"
'''


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "init", panel=PANEL)(init)
    command(app, "migrate", panel=PANEL)(migrate)


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = Path("agents.py"),
    offline: Annotated[
        bool, typer.Option("--offline", help="With a scripted model that needs no key and no network.")
    ] = False,
) -> ExitCode | None:
    """Write a small agents.py to start from; never overwrites a file."""
    text = _AGENTS
    if offline:
        head, _, rest = text.partition('        return "openai')
        text = head + _OFFLINE_MODEL + rest.partition("\n")[2]
        text = text.replace("from think_celery import Think\n", _OFFLINE_IMPORTS)
    if not file.name.removesuffix(".py").isidentifier() or file.suffix != ".py":
        raise InvalidInput("file", f"{file.name!r} cannot be imported; choose a name such as agents.py")
    try:
        with file.open("x") as stream:
            stream.write(text)
    except FileExistsError:
        raise InvalidInput("file", f"{file} exists already; move it away or name another one") from None
    except OSError as error:
        raise InvalidInput("file", f"{file} cannot be written ({error.strerror})") from None
    write(f"wrote {file}; `think-celery up` in this folder serves it\n")
    return None


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it.")] = False,
    as_json: Json = False,
) -> ExitCode | None:
    """Create the ledger's schema or bring it up to date; safe to repeat, and from several hosts at once."""
    if sql:
        write(migrations.sql(load_settings(**_ANY_SERVER)))
        return None
    adopt_stack()
    settings = load_settings()
    revision = migrations.upgrade(settings)
    if as_json:
        print_json({"schema": settings.schema_name, "revision": revision})
    else:
        write(f"schema {settings.schema_name} is at revision {revision}\n")
    return None


_OFFLINE_IMPORTS = "from think_celery import Think\nfrom think_celery.testing import scripted_model\n"
_ANY_SERVER = {"database_url": "postgresql://not/used", "redis_url": "redis://not-used"}
