"""`schedules` and the commands below it."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.engine.timing import Clockwork, handler, plans, prompt
from think_celery.core.address import Address
from think_celery.engine import schedules
from think_celery.engine.runtime import Runtime


@pytest.fixture
def alice(runtime: Runtime) -> Clockwork:
    plans.pop("alice", None)
    return Clockwork(runtime, Address("Timed", "alice"))


def test_nothing_yet(on_ledger: Cli) -> None:
    shown = on_ledger("schedules")
    assert (shown.code, shown.out) == (0, "No agent has scheduled tasks yet.\n")


def test_the_table(on_ledger: Cli, alice: Clockwork) -> None:
    alice.declare(
        report=prompt(schedule="every weekday at 09:00 in Europe/London"),
        broken=prompt(schedule="now and then"),
    )
    alice.late()
    alice.dispatch()
    lines = on_ledger("schedules").out.splitlines()
    assert "next run (UTC)" in lines[0]
    assert "invalid: UNSUPPORTED" in lines[1]
    line = next(line for line in lines if line.startswith("report"))
    assert "Timed/alice" in line
    assert "Europe/London" in line
    assert "09:00" in line
    assert "pending" in line
    assert "hold, once" in line
    assert alice.handle.list_submissions()[0].submission_id in "".join(lines)


def test_json(on_ledger: Cli, alice: Clockwork) -> None:
    alice.declare(report=prompt())
    [view] = json.loads(on_ledger("schedules", "--json").out)
    assert view["taskId"] == "report"
    assert view["status"] == "active"
    assert view["nextRunAt"].endswith("09:00:00Z")
    assert json.loads(on_ledger("schedules", "--of", "Timed/bob", "--json").out) == []
    assert len(json.loads(on_ledger("schedules", "--of", "Timed", "--json").out)) == 1


def test_a_narrow_terminal(on_ledger: Cli, alice: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of lines for each task, in which nothing is folded, and nothing told that there is not."""
    monkeypatch.setenv("COLUMNS", "80")
    alice.declare(report=prompt(schedule="every 1 hour"))
    alice.late()
    alice.dispatch()
    lines = [line.rstrip() for line in on_ledger("schedules").out.splitlines()]
    assert lines[:3] == ["report", "  agent           Timed/alice", "  schedule        every 1 hour"]
    assert str(alice.past()[0].submission_id) in "".join(lines)
    assert not any(line.startswith("  zone") for line in lines)
    assert max(map(len, lines)) <= 80


def test_what_there_is_not(on_ledger: Cli, alice: Clockwork) -> None:
    assert on_ledger("schedules", "--of", "Timed/bob").out == "Timed/bob has no scheduled tasks.\n"
    assert on_ledger("schedules", "history", "report", "Timed/bob").code == 4
    alice.declare(report=prompt())
    shown = on_ledger("schedules", "history", "report")
    assert (shown.code, shown.out) == (0, "report of Timed/alice has not been due yet.\n")


def test_run_and_history(on_ledger: Cli, alice: Clockwork) -> None:
    alice.declare(report=prompt())
    ran = on_ledger("schedules", "run", "report")
    assert (ran.code, ran.err) == (0, "")
    assert "report of Timed/alice is due now" in ran.out
    alice.run_open()
    line = on_ledger("schedules", "history", "report", "Timed/alice").out.splitlines()[1]
    assert "by hand" in line
    assert "submitted" in line
    [past] = json.loads(on_ledger("schedules", "history", "report", "--json").out)
    assert past["manual"] is True
    assert past["submissionId"] == alice.handle.list_submissions()[0].submission_id


def test_exit_codes_of_run(on_ledger: Cli, alice: Clockwork) -> None:
    assert on_ledger("schedules", "run", "report").code == 4
    assert on_ledger("schedules", "run", "report", "Timed/alice").code == 4
    alice.declare(report=handler(print))
    assert on_ledger("schedules", "run", "report", "--json").code == 0
    refused = on_ledger("schedules", "run", "report")
    assert refused.code == 1
    assert "never runs twice at once" in refused.err
    alice.declare(report=prompt(schedule="now and then"))
    refused = on_ledger("schedules", "run", "report")
    assert (refused.code, "report of Timed/alice cannot run: UNSUPPORTED" in refused.err) == (1, True)


def test_a_task_of_several_agents_needs_a_name(on_ledger: Cli, alice: Clockwork) -> None:
    alice.declare(report=prompt())
    bob = Clockwork(alice.runtime, Address("Timed", "bob"))
    bob.declare(report=prompt())
    refused = on_ledger("schedules", "pause", "report")
    assert refused.code == 2
    assert "Timed/alice" in refused.err
    assert on_ledger("schedules", "pause", "report", "Timed/bob").code == 0
    assert [view.status for view in alice.handle.schedules()] == ["active"]


def test_pause_and_resume(on_ledger: Cli, alice: Clockwork) -> None:
    alice.declare(report=prompt())
    assert on_ledger("schedules", "pause", "report").out == "paused report of Timed/alice\n"
    assert on_ledger("schedules", "pause", "report").out == "report of Timed/alice is paused already\n"
    assert "paused" in on_ledger("schedules").out
    assert json.loads(on_ledger("schedules", "resume", "report", "--json").out)["changed"] is True
    assert on_ledger("schedules", "resume", "report").out == "report of Timed/alice was not paused\n"
    assert on_ledger("schedules", "resume", "other", "Timed/alice").code == 4


def test_check_needs_no_server(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_agents.py").write_text(
        "from think_celery import ScheduledTask, Think\n"
        "class Checked(Think):\n"
        "    def get_scheduled_tasks(self):\n"
        "        return {\n"
        "            'good': ScheduledTask(schedule='every day at 09:00 in UTC', prompt='x'),\n"
        "            'bad': ScheduledTask(schedule='every day at 09:00', prompt='x'),\n"
        "        }\n"
    )
    shown = cli("schedules", "check", "checked_agents", "--json")
    assert shown.code == 1
    verdicts = {row["taskId"]: row["fault"] for row in json.loads(shown.out) if row["class"] == "Checked"}
    assert verdicts["good"] is None
    assert verdicts["bad"].startswith("TIMEZONE_REQUIRED")
    assert cli("schedules", "check").code == 2
    (tmp_path / "agents.py").write_text("from checked_agents import Checked  # it uses think_celery")
    assert "TIMEZONE_REQUIRED" in cli("schedules", "check").out
    sys.modules.pop("agents")


def test_doctor_tells_of_late_ticks_and_tasks(on_ledger: Cli, alice: Clockwork) -> None:
    """Field row 55: a beat that is alive but stuck shows by the age of its last tick."""

    def told() -> tuple[str, str]:
        found = json.loads(on_ledger("doctor", "--json").out)
        [finding] = [each for each in found if each["check"] == "schedules"]
        return finding["level"], finding["text"]

    assert told() == ("ok", "no task is active")
    alice.declare(report=prompt())
    assert told()[0] == "warn"
    assert "last tick of a beat: never" in told()[1]
    schedules.answer_tick(alice.runtime)
    assert told()[0] == "ok"
    alice.sql("UPDATE {schema}.ticks SET ticked_at = ticked_at - interval '3 days'")
    assert "last tick of a beat: 3 d ago" in told()[1]
    alice.sql("UPDATE {schema}.ticks SET ticked_at = now()")
    alice.late(timedelta(minutes=10))
    assert "overdue since" in told()[1]


@pytest.mark.spec("C96", "C97")
def test_a_restored_ledger_stands_still_until_somebody_confirms(on_ledger: Cli, alice: Clockwork) -> None:
    alice.declare(report=prompt())
    schedules.answer_tick(alice.runtime)
    alice.sql("UPDATE {schema}.ticks SET ticked_at = ticked_at - interval '20 seconds'")
    alice.late()
    assert schedules.answer_tick(alice.runtime).counts == {"submitted": 1}  # a failover lost so much at most
    alice.sql("UPDATE {schema}.ticks SET ticked_at = ticked_at - interval '1 hour'")
    alice.late()
    assert schedules.answer_tick(alice.runtime).counts == {"halted": 1}
    assert schedules.answer_tick(alice.runtime).counts == {"halted": 1}
    assert on_ledger("doctor", "--json").code == 1
    assert "restored backup" in on_ledger("schedules").err
    assert on_ledger("schedules", "confirm").code == 0
    assert on_ledger("schedules", "confirm").code == 1
    alice.drain()
    alice.late(timedelta(minutes=2))
    assert schedules.answer_tick(alice.runtime).counts == {"submitted": 1}
