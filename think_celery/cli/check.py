"""The checks of `doctor`; a module of its own, because they load the whole program."""

import os
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import think_celery
from think_celery.agent import registry
from think_celery.cli.context import adopt_stack
from think_celery.cli.finding import Finding
from think_celery.cli.output import duration, without_password
from think_celery.cli.worker_check import everybody, impatient
from think_celery.dev.home import home_nearby
from think_celery.engine.schedules import TICK
from think_celery.errors import InvalidSettings, ServiceError, StackNotRunning
from think_celery.ledger import migrate
from think_celery.ledger.classes import paused_classes
from think_celery.ledger.database import Database
from think_celery.ledger.report import server_version
from think_celery.ledger.ticks import HALTED, lateness, ticked
from think_celery.settings import PREFIX, Settings, load_settings
from think_celery.stream.check import redis_report
from think_celery.worker.app import default_app

_OLDEST_POSTGRES = 14


def findings() -> Iterator[Finding]:
    """Look at everything, one finding after the other; stops where nothing more can be known."""
    yield from _environment()
    try:
        stack = adopt_stack()
        loaded = load_settings()
    except InvalidSettings as error:
        names = ", ".join(PREFIX + name.upper() for name in Settings.model_fields)
        yield Finding("settings", "fail", f"{error}\nknown settings: {names}, THINK_HOME, THINK_FLOWER_…")
        return
    except StackNotRunning as error:
        yield Finding("servers", "fail", str(error))
        return
    where = f"local stack in {home_nearby().folder}" if stack is not None else "named by the environment"
    agents = ", ".join(loaded.agents or (stack.agents if stack is not None else ()))
    yield Finding("settings", "ok", f"servers: {where}; agents: {agents or 'none named'}")
    yield from _agents(loaded)
    yield from _ledger(loaded)
    yield from _redis(loaded)
    yield _broker(loaded)


def _environment() -> Iterator[Finding]:
    if os.environ.get("FLOWER_UNAUTHENTICATED_API"):
        text = "FLOWER_UNAUTHENTICATED_API is set: anybody who reaches Flower may run tasks; unset it"
        yield Finding("flower", "fail", text)
    spec = find_spec("workers")
    ours = Path(think_celery.__file__).parents[1] / "workers"
    if spec is None or spec.origin is None or Path(spec.origin).parent.resolve() != ours.resolve():
        found = "nothing" if spec is None else spec.origin or "a folder without __init__.py"
        text = f"`celery -A workers` would load {found} and not think-celery's workers; rename yours"
        yield Finding("workers", "warn", text)


def _agents(settings: Settings) -> Iterator[Finding]:
    if not settings.agents:
        return
    try:
        registry.load(settings.agents)
    except InvalidSettings as error:
        yield Finding("agents", "fail", f"{error}; fix it, or correct THINK_AGENTS")
        return
    yield Finding("agents", "ok", f"classes: {', '.join(registry.known()) or 'none in these modules'}")


def _ledger(settings: Settings) -> Iterator[Finding]:
    bounded = impatient(settings)
    database = Database(bounded)
    try:
        yield _postgres(server_version(database), settings)
        try:
            yield Finding("schema", "ok", f"{settings.schema_name}, revision {migrate.check(bounded)}")
        except ServiceError as error:
            yield Finding("schema", "fail", str(error))
            return
        yield everybody(database)
        yield from _paused(database)
        yield _schedules(database)
    except ServiceError as error:
        yield Finding("postgres", "fail", f"{error}; check THINK_DATABASE_URL and that the server runs")
    finally:
        database.close()


def _postgres(version: str, settings: Settings) -> Finding:
    place = without_password(settings.database_url)
    if int(version.split(".")[0].split()[0]) < _OLDEST_POSTGRES:
        return Finding(
            "postgres", "fail", f"{version} at {place} is too old; use PostgreSQL {_OLDEST_POSTGRES} or newer"
        )
    return Finding("postgres", "ok", f"{version} at {place}")


def _paused(database: Database) -> Iterator[Finding]:
    paused = paused_classes(database)
    if paused:
        text = f"{', '.join(paused)}: none of their turns starts before `think-celery resume CLASS`"
        yield Finding("paused", "warn", text)


def _schedules(database: Database) -> Finding:
    if HALTED in ticked(database):
        text = (
            "the ledger has gone back in time, so nothing comes due before `think-celery schedules confirm`"
        )
        return Finding("schedules", "fail", text)
    late = lateness(database, TICK)
    if not late.active:
        return Finding("schedules", "ok", "no task is active")
    patience = timedelta(seconds=max(30.0, 6 * database.settings.schedule_seconds))
    if late.oldest_due_at is not None and late.now - late.oldest_due_at > patience:
        text = (
            f"a task is overdue since {late.oldest_due_at:%Y-%m-%d %H:%M} UTC: does a worker serve its class?"
        )
        return Finding("schedules", "warn", text)
    since = (
        "never" if late.ticked_at is None else f"{duration((late.now - late.ticked_at).total_seconds())} ago"
    )
    if late.ticked_at is None or late.now - late.ticked_at > patience:
        text = (
            f"last tick of a beat: {since}; workers look by themselves, later: start `celery -A workers beat`"
        )
        return Finding("schedules", "warn", text)
    return Finding("schedules", "ok", f"last tick of a beat {since}, nothing overdue")


def _redis(settings: Settings) -> Iterator[Finding]:
    report = redis_report(settings)
    if not report.reachable:
        yield Finding("redis", "fail", "; ".join(report.problems))
        return
    aof = "on" if report.aof_enabled else "off"
    text = f"{report.server} {report.version}, {report.maxmemory_policy}, append-only file {aof}"
    yield Finding("redis", "ok", f"{text} at {without_password(settings.redis_url)}")
    for problem in report.problems:
        level: Literal["warn", "fail"] = "fail" if "maxmemory" in problem or "too old" in problem else "warn"
        yield Finding("redis", level, problem)


def _broker(settings: Settings) -> Finding:
    place = without_password(settings.broker_url)
    if settings.broker_url == settings.redis_url:
        return Finding("broker", "ok", "the same server")
    try:
        with default_app(settings).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=settings.redis_timeout)
    except Exception as error:  # noqa: BLE001 - every transport has errors of its own
        return Finding("broker", "fail", f"{place} cannot be reached ({error}); check THINK_BROKER_URL")
    return Finding("broker", "ok", place)
