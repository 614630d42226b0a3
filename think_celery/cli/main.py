"""The entry point of `think-celery`."""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from think_celery.cli import change, conversation, doctor, look, project, removal, schedules, stack
from think_celery.cli.exit_code import epilog
from think_celery.dev.home import HOME_VARIABLE


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"think-celery {version('think-celery')}\n")
        raise typer.Exit


def _root(
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            envvar=HOME_VARIABLE,
            metavar="FOLDER",
            help="Data folder of the local stack; default .think-celery here or in a folder above.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A durable, ordered queue of LLM-agent turns on Celery.

    Start with `think-celery up`, then elsewhere `think-celery submit TaskAgent/alice "hello" --wait`
    """
    if home is not None:
        os.environ[HOME_VARIABLE] = str(home.expanduser().resolve())


def build() -> typer.Typer:
    """Return the command with all its groups."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog=epilog())(_root)
    for group in (stack, project, conversation, look, schedules, change, removal, doctor):
        group.add_commands(app)
    return app


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    build()(prog_name="think-celery")
