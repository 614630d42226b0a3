"""`doctor`: look at everything that has to be right, and say what to do about what is not."""

from dataclasses import asdict
from importlib import import_module
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.text import Text

from think_celery.cli.context import Json, command
from think_celery.cli.exit_code import ExitCode
from think_celery.cli.output import console, pairs, print_json, without_password
from think_celery.settings import PREFIX, Settings, load_settings

PANEL = "Project"
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def add_commands(app: typer.Typer) -> None:
    """Register the commands of this group."""
    command(app, "doctor", panel=PANEL)(doctor)


def doctor(
    settings: Annotated[
        bool, typer.Option("--settings", help="List every setting and its value as well.")
    ] = False,
    worker: Annotated[
        bool,
        typer.Option("--worker", help="Only whether a worker of this host is alive; for a health check."),
    ] = False,
    as_json: Json = False,
) -> ExitCode | None:
    """Check settings, servers, schema, Redis policy, agents and workers; exit status 1 if a check fails."""
    # The whole examination loads Celery and Alembic, for which no other command waits.
    check = import_module("think_celery.cli.worker_check" if worker else "think_celery.cli.check")
    findings = []
    for finding in check.findings():
        findings.append(finding)
        if not as_json:
            mark, style = _MARKS[finding.level]
            line = Text.assemble((f"{mark} ", style), (f"{finding.check:<11}", "bold"), finding.text)
            console().print(line, soft_wrap=True)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if settings:
        _print_settings()
    return ExitCode.NEGATIVE if any(finding.level == "fail" for finding in findings) else None


def _print_settings() -> None:
    loaded = load_settings()
    console().print()
    values = {name: getattr(loaded, name) for name in Settings.model_fields}
    shown = {
        name: without_password(value) if isinstance(value, SecretStr) else value
        for name, value in values.items()
    }
    pairs(
        (PREFIX + name.upper(), ",".join(value) if isinstance(value, tuple) else value)
        for name, value in shown.items()
    )
