"""The limits script finds what it should, passes what it should, and the project keeps its limits."""

from pathlib import Path

import pytest

from tests.project import limits

ENGINE = "think_celery/engine/turn.py"
CORE = "think_celery/core/turn.py"
TEST = "tests/engine/test_turn.py"


def rules(file: str, source: str) -> list[tuple[int, str]]:
    return [(breach.line, breach.rule) for breach in limits.breaches(file, source)]


def test_the_project_keeps_its_limits() -> None:
    assert limits.check(limits.ROOT, limits.WAIVERS) == []


@pytest.mark.parametrize(
    ("file", "source", "rule"),
    [
        (ENGINE, "import sqlalchemy", "technology-home"),
        (ENGINE, "from sqlalchemy.exc import SQLAlchemyError", "technology-home"),
        (ENGINE, "from psycopg import connect", "technology-home"),
        (ENGINE, "def work() -> None:\n    import redis.asyncio as r", "technology-home"),
        ("think_celery/ledger/rows.py", "import celery", "technology-home"),
        ("think_celery/cli/schedules.py", "from zoneinfo import ZoneInfo", "technology-home"),
        ("think_celery/cli/main.py", "import kombu.utils", "technology-home"),
        (ENGINE, "import time\ntime.sleep(1)", "effect-home"),
        (ENGINE, "from time import sleep as nap\nnap(1)", "effect-home"),
        (ENGINE, "import time as t\nnow = t.time", "effect-home"),
        (ENGINE, "from datetime import datetime\ndatetime.now()", "effect-home"),
        (ENGINE, "import datetime as dt\ndt.datetime.now(dt.UTC)", "effect-home"),
        ("think_celery/ledger/lanes.py", "from uuid import uuid4\nuuid4()", "effect-home"),
        (ENGINE, "import random\nrandom.random()", "effect-home"),
        (ENGINE, "from os import environ\nenviron['A']", "effect-home"),
        (ENGINE, "import os\nos.environ.get('A')", "effect-home"),
        (CORE, "import time", "pure-core"),
        (CORE, "import asyncio", "pure-core"),
        (CORE, "from think_celery.agent import Think", "pure-core"),
        (CORE, "import rich", "pure-core"),
        (ENGINE, "send_task('x', countdown=3)", "banned-argument"),
        (ENGINE, "send_task('x', eta=when)", "banned-argument"),
        (ENGINE, "app.control.revoke(uid, terminate=True)", "banned-argument"),
        (ENGINE, "AsyncResult(uid).get()", "banned-name"),
        (ENGINE, "import celery.result\ncelery.result.AsyncResult(uid)", "banned-name"),
        (TEST, "import unittest.mock", "banned-module"),
        (TEST, "from unittest import mock", "banned-module"),
        (TEST, "x = 1  # " + "TO" + "DO: later", "banned-word"),
        (TEST, '"""' + "FIX" + 'ME"""', "banned-word"),
    ],
)
def test_a_breach_is_found_on_its_line(file: str, source: str, rule: str) -> None:
    assert (len(source.splitlines()), rule) in rules(file, source)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("think_celery/ledger/rows.py", "import sqlalchemy, psycopg"),
        ("think_celery/stream/hub.py", "import redis.asyncio"),
        ("think_celery/worker/app.py", "from celery import Celery\nfrom kombu import Queue"),
        ("beat_schedule.py", "from celery.schedules import schedule"),
        ("workers/__init__.py", "import celery"),
        (ENGINE, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from celery import Celery"),
        (ENGINE, "import time\ntime.monotonic()"),
        (ENGINE, "from datetime import datetime\ndatetime.fromisoformat('2026-01-01')"),
        (ENGINE, "process.terminate()"),
        (ENGINE, "def work(sleep: float) -> float:\n    return sleep"),
        (CORE, "from cronsim import CronSim\nfrom tzdata import IANA_VERSION\nfrom zoneinfo import ZoneInfo"),
        (CORE, "import json\nfrom pydantic import BaseModel\nfrom think_celery.core.record import Record"),
        (CORE, "from think_celery.errors import InvalidInput\nfrom pydantic_core import from_json"),
        (CORE, "from datetime import UTC, datetime, timedelta\nfrom uuid import UUID"),
        (TEST, "import sqlalchemy, redis, celery, random, time, uuid\ntime.time(); uuid.uuid4()"),
        (TEST, "def test_mock_server(mock):\n    mock.wait()"),
    ],
)
def test_what_is_allowed_passes(file: str, source: str) -> None:
    assert rules(file, source) == []


def test_sizes_are_counted_without_the_docstring() -> None:
    doc = '    """' + "why\n" * 60 + '    """\n'
    fits = "def work() -> None:\n" + doc + "    step()\n" * 40
    assert rules(ENGINE, fits) == []
    assert rules(ENGINE, fits + "    step()\n") == [(1, "function-size")]
    assert rules(ENGINE, "async " + fits + "\n    step()\n") == [(1, "function-size")]
    assert rules(ENGINE, '"""Only words."""\n' + "def f() -> None:\n" + doc) == []


def test_a_file_has_at_most_400_lines() -> None:
    assert rules(ENGINE, "x = 1\n" * 400) == []
    assert rules(ENGINE, "x = 1\n" * 401) == [(401, "file-size")]


def test_the_report_names_the_place_the_rule_and_the_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "think_celery" / "engine"
    folder.mkdir(parents=True)
    (folder / "turn.py").write_text("import redis\n")
    line = "think_celery/engine/turn.py:1: technology-home: redis is used in think_celery/stream/ only"
    assert limits.check(tmp_path, {}) == [line]
    assert limits.check(tmp_path, {(ENGINE, "technology-home"): "a reason"}) == []


def test_a_waiver_that_nothing_needs_is_reported(tmp_path: Path) -> None:
    waivers = {(ENGINE, "file-size"): "a reason"}
    assert limits.check(tmp_path, waivers) == [
        "think_celery/engine/turn.py:1: idle-waiver: nothing breaks file-size any more"
    ]


def test_core_has_no_home_for_any_effect() -> None:
    for homes in limits.EFFECT_HOMES.values():
        assert not any(home.startswith(limits.CORE) for home in homes)


def test_core_is_home_to_the_arithmetic_of_schedules_only() -> None:
    found = {package for package, homes in limits.TECHNOLOGY_HOMES.items() if limits.CORE in homes}
    assert found == {"cronsim", "tzdata", "zoneinfo"}
