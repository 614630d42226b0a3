"""Commands that change what was handed over, on a real ledger; turns run when a test says so."""

import io
import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import agents  # noqa: F401  (registers the classes)
from tests.cli.conftest import Cli
from think_celery.cli.exit_code import ExitCode
from think_celery.core.address import Address
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually

NAME = "Scripted/alice"
ALICE = Address("Scripted", "alice")


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def submit(cli: Cli, text: str, submission_id: str, *options: str) -> None:
    result = cli("submit", NAME, text, "--id", submission_id, *options)
    assert result.code == 0, result.err


def statuses(cli: Cli) -> dict[str, str]:
    return {row["submissionId"]: row["status"] for row in json.loads(cli("list", NAME, "--json").out)}


def test_cancel_a_waiting_submission(on_ledger: Cli) -> None:
    submit(on_ledger, "hello", "s1")
    result = on_ledger("cancel", NAME, "s1", "--reason", "no longer needed")
    assert (result.code, result.out, result.err) == (0, "cancelled s1, which had not started\n", "")
    row = json.loads(on_ledger("inspect", NAME, "s1", "--json").out)
    assert (row["status"], row["error"]) == ("aborted", "no longer needed")
    again = on_ledger("cancel", NAME, "s1")
    assert (again.code, again.out) == (ExitCode.NEGATIVE, "")
    assert again.err == "think-celery: s1 had ended in aborted before\n"
    unknown = on_ledger("cancel", NAME, "s2")
    assert (unknown.code, unknown.out) == (ExitCode.NOT_FOUND, "")
    assert unknown.err == "think-celery: Scripted/alice has no submission 's2'\n"


def test_cancel_for_machines(on_ledger: Cli) -> None:
    submit(on_ledger, "hello", "s1")
    done = on_ledger("cancel", NAME, "s1", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["outcome"], answer["previousStatus"]) == (0, "cancelled", "pending")
    assert answer["messagesApplied"] is False
    assert answer["submission"]["status"] == "aborted"
    again = on_ledger("cancel", NAME, "s1", "--json")
    assert (again.code, json.loads(again.out)["outcome"]) == (ExitCode.NEGATIVE, "already_terminal")
    unknown = on_ledger("cancel", NAME, "s2", "--json")
    assert (unknown.code, json.loads(unknown.out)["outcome"]) == (ExitCode.NOT_FOUND, "not_found")
    assert again.err + unknown.err == ""


def test_cancel_a_running_turn(on_ledger: Cli, runtime: Runtime) -> None:
    submit(on_ledger, "sleep 60", "s1")
    submit(on_ledger, "hello", "s2")
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(drain, runtime, ALICE)
        eventually(lambda: statuses(on_ledger)["s1"] == "running")
        assert on_ledger("cancel", NAME, "s1").out == "cancelled s1, which was running\n"
        assert running.result(20)
    assert statuses(on_ledger) == {"s1": "aborted", "s2": "completed"}
    assert "sleeping" in on_ledger("messages", NAME).out


def test_cancel_all_and_by_metadata(on_ledger: Cli) -> None:
    for number in range(4):
        submit(on_ledger, "hello", f"s{number}", "--metadata", json.dumps({"half": number // 2}))
    found = json.loads(on_ledger("list", NAME, "--metadata", '{"half": 1}', "--json").out)
    assert [row["submissionId"] for row in found] == ["s3", "s2"]
    shown = on_ledger("cancel", NAME, "--all", "--metadata", '{"half": 0}', "--reason", "first half")
    assert shown.code == 0
    assert re.search(r"^s0 +had not started *\n^s1 +had not started *\n\Z", shown.out, re.MULTILINE)
    assert statuses(on_ledger) == {"s0": "aborted", "s1": "aborted", "s2": "pending", "s3": "pending"}
    results = json.loads(on_ledger("cancel", NAME, "--all", "--json").out)
    assert [(one["submissionId"], one["outcome"]) for one in results] == [
        ("s2", "cancelled"),
        ("s3", "cancelled"),
    ]
    nothing = on_ledger("cancel", NAME, "--all")
    assert (nothing.code, nothing.out) == (0, "Scripted/alice has nothing to cancel.\n")


def test_delete_one(on_ledger: Cli) -> None:
    submit(on_ledger, "hello", "s1")
    waiting = on_ledger("delete", NAME, "s1")
    assert (waiting.code, waiting.err) == (
        ExitCode.NEGATIVE,
        "think-celery: s1 is pending; cancel it first\n",
    )
    on_ledger("cancel", NAME, "s1")
    assert on_ledger("delete", NAME, "s1").out == "deleted s1\n"
    assert on_ledger("delete", NAME, "s1").code == ExitCode.NOT_FOUND
    submit(on_ledger, "hello", "s1")  # its id is free again


def test_delete_what_has_ended(on_ledger: Cli, runtime: Runtime) -> None:
    for number in range(5):
        submit(on_ledger, "error no" if number == 0 else "ok", f"s{number}")
    drain(runtime, ALICE)
    submit(on_ledger, "hello", "s5")
    assert json.loads(on_ledger("delete", NAME, "--ended", "--before", "1h", "--json").out) == {"deleted": 0}
    one = on_ledger("delete", NAME, "--ended", "--status", "error", "--status", "aborted")
    assert (one.code, one.out) == (0, "deleted 1 record\n")
    assert on_ledger("delete", NAME, "--ended", "--limit", "1").out == "deleted 1 record\n"
    assert statuses(on_ledger) == {**{f"s{n}": "completed" for n in (2, 3, 4)}, "s5": "pending"}
    assert on_ledger("delete", NAME, "--ended", "--before", "0s").out == "deleted 3 records\n"
    assert statuses(on_ledger) == {"s5": "pending"}
    assert len(json.loads(on_ledger("messages", NAME, "--json").out)) == 10


def test_more_than_one_batch_is_deleted(on_ledger: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_celery.cli.removal.DELETE_LIMIT", 2)
    for number in range(7):
        submit(on_ledger, "hello", f"s{number}")
    on_ledger("cancel", NAME, "--all")
    assert on_ledger("delete", NAME, "--ended", "--limit", "3").out == "deleted 3 records\n"
    assert on_ledger("delete", NAME, "--ended").out == "deleted 4 records\n"


def test_delete_everything_about_an_agent(on_ledger: Cli, runtime: Runtime) -> None:
    submit(on_ledger, "hello", "s1")
    drain(runtime, ALICE)
    submit(on_ledger, "hello", "s2")
    refused = on_ledger("delete", NAME, "--everything")
    assert refused.code == ExitCode.WRONG_CALL
    assert "--yes" in refused.err
    assert len(statuses(on_ledger)) == 2
    assert (
        on_ledger("delete", NAME, "--everything", "--yes").out == "deleted everything about Scripted/alice\n"
    )
    assert statuses(on_ledger) == {}
    assert json.loads(on_ledger("messages", NAME, "--json").out) == []
    again = on_ledger("delete", NAME, "--everything", "--yes")
    assert (again.code, again.err) == (
        ExitCode.NOT_FOUND,
        "think-celery: there is nothing about Scripted/alice\n",
    )


@pytest.mark.parametrize(("typed", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1), ("", 1, 1)])
def test_a_person_is_asked(
    on_ledger: Cli, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, left: int
) -> None:
    submit(on_ledger, "hello", "s1")
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    result = on_ledger("delete", NAME, "--everything", "--json")
    assert "Delete Scripted/alice with its submissions and its whole conversation? [y/N]" in result.err
    assert result.code == code
    assert result.out == ('{"deleted": "Scripted/alice"}\n' if code == 0 else "")
    assert len(statuses(on_ledger)) == left


def test_clear(on_ledger: Cli, runtime: Runtime) -> None:
    submit(on_ledger, "hello", "s1")
    drain(runtime, ALICE)
    submit(on_ledger, "hello", "s2")
    refused = on_ledger("clear", NAME)
    assert refused.code == ExitCode.WRONG_CALL
    assert "Empty the conversation of Scripted/alice?" in refused.err
    kept = on_ledger("clear", NAME, "--keep-messages", "--yes")
    assert (kept.code, kept.out) == (0, "ended the turns of Scripted/alice\n")
    assert statuses(on_ledger) == {"s1": "completed", "s2": "skipped"}
    assert len(json.loads(on_ledger("messages", NAME, "--json").out)) == 2
    submit(on_ledger, "hello", "s3")
    assert on_ledger("clear", NAME, "-y").out == "cleared Scripted/alice\n"
    assert statuses(on_ledger)["s3"] == "skipped"
    assert json.loads(on_ledger("messages", NAME, "--json").out) == []
    answer = json.loads(on_ledger("clear", NAME, "-y", "--json").out)
    assert answer == {"agent": NAME, "messagesKept": False}


def test_pause_and_resume_an_agent(on_ledger: Cli, runtime: Runtime) -> None:
    assert on_ledger("pause", NAME).out == "paused Scripted/alice\n"
    assert on_ledger("pause", NAME).out == "Scripted/alice is paused already\n"
    submit(on_ledger, "hello", "s1")
    assert "paused" in drain(runtime, ALICE)
    assert re.search(r"^Scripted/alice .* paused *$", on_ledger("agents").out, re.MULTILINE)
    (lane,) = json.loads(on_ledger("agents", "--json").out)
    assert (lane["paused"], lane["classPaused"]) == (True, False)
    answer = json.loads(on_ledger("resume", NAME, "--json").out)
    assert answer == {"agent": NAME, "paused": False, "changed": True}
    assert on_ledger("resume", NAME).out == "Scripted/alice was not paused\n"
    drain(runtime, ALICE)
    assert statuses(on_ledger) == {"s1": "completed"}


def test_pause_and_resume_a_class(on_ledger: Cli, runtime: Runtime) -> None:
    submit(on_ledger, "hello", "s1")
    assert on_ledger("pause", "Scripted").out == "paused Scripted\n"
    assert "paused" in drain(runtime, ALICE)
    assert re.search(r"^Scripted/alice .* its class *$", on_ledger("agents").out, re.MULTILINE)
    assert json.loads(on_ledger("agents", "--json").out)[0]["classPaused"] is True
    resumed = on_ledger("resume", NAME)
    assert resumed.out.endswith("its class is paused, so nothing starts yet: think-celery resume Scripted\n")
    assert json.loads(on_ledger("resume", NAME, "--json").out)["classPaused"] is True
    assert "Scripted: none of their turns starts before `think-celery resume" in on_ledger("doctor").out
    answer = json.loads(on_ledger("resume", "Scripted", "--json").out)
    assert answer == {"class": "Scripted", "paused": False, "changed": True}
    drain(runtime, ALICE)
    assert statuses(on_ledger) == {"s1": "completed"}


def test_rerun(on_ledger: Cli, runtime: Runtime) -> None:
    submit(on_ledger, "hello", "s1", "--metadata", '{"a": 1}')
    drain(runtime, ALICE)
    receipt = json.loads(on_ledger("rerun", NAME, "s1", "--key", "again", "--json").out)
    assert (receipt["rerunOf"], receipt["metadata"], receipt["accepted"]) == ("s1", {"a": 1}, True)
    assert "known already" in on_ledger("rerun", NAME, "s1", "--key", "again").out
    assert "repeats s1" in on_ledger("list", NAME).out
    waited = on_ledger("rerun", NAME, "s1", "--key", "again", "--wait", "--timeout", "0")
    assert waited.code == ExitCode.TIMED_OUT
    drain(runtime, ALICE)
    done = on_ledger("rerun", NAME, "s1", "--key", "again", "--wait")
    assert (done.code, done.out) == (0, "hello (3)\n")
    assert on_ledger("rerun", NAME, "nobody").code == ExitCode.NOT_FOUND


def test_if_busy(on_ledger: Cli) -> None:
    submit(on_ledger, "hello", "s1", "--if-busy", "reject")
    busy = on_ledger("submit", NAME, "hello", "--if-busy", "reject")
    assert busy.code == ExitCode.NEGATIVE
    assert busy.err.startswith("think-celery: Scripted/alice is busy")
    submit(on_ledger, "hello", "s2", "--if-busy", "interrupt")
    assert statuses(on_ledger) == {"s1": "aborted", "s2": "pending"}
    submit(on_ledger, "hello", "s3", "--if-busy", "rollback")
    assert statuses(on_ledger) == {"s1": "aborted", "s2": "aborted", "s3": "pending"}
    odd = on_ledger("submit", NAME, "hello", "--if-busy", "wait")
    assert odd.code == ExitCode.WRONG_CALL
    assert "interrupt" in odd.err


def test_a_full_lane_is_a_no(on_ledger: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINK_MAX_PENDING", "1")
    submit(on_ledger, "hello", "s1")
    full = on_ledger("submit", NAME, "hello")
    assert full.code == ExitCode.NEGATIVE
    assert "THINK_MAX_PENDING" in full.err


def test_times_of_a_submission(on_ledger: Cli) -> None:
    options = ("--not-before", "10m", "--not-after", "2999-01-01T00:00:00+02:00", "--run-timeout", "1m30s")
    submit(on_ledger, "hello", "s1", *options)
    row = json.loads(on_ledger("inspect", NAME, "s1", "--json").out)
    assert row["notAfter"] == "2998-12-31T22:00:00Z"
    assert row["runTimeout"] == 90
    assert re.search(r"starts in (9|10) min", on_ledger("list", NAME).out)
    wrong = on_ledger("submit", NAME, "hello", "--not-before", "2h", "--not-after", "1h")
    assert wrong.code == ExitCode.WRONG_CALL
    assert "not_after" in wrong.err


def test_the_worker_check(on_ledger: Cli, make_runtime: Callable[..., Runtime]) -> None:
    missing = on_ledger("doctor", "--worker")
    assert missing.code == ExitCode.NEGATIVE
    assert re.match(r"✗ worker +none alive on \S+\n\Z", missing.out)
    make_runtime()
    found = on_ledger("doctor", "--worker")
    assert (found.code, found.out.count("\n")) == (0, 1)
    assert re.match(r"✓ worker +1 process alive on \S+, serving .*Scripted", found.out)
    (finding,) = json.loads(on_ledger("doctor", "--worker", "--json").out)
    assert (finding["check"], finding["level"]) == ("worker", "ok")


def test_a_worker_of_another_host_or_a_dead_one_does_not_count(
    on_ledger: Cli, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
        assert on_ledger("doctor", "--worker").out.endswith("none alive on elsewhere\n")
    assert on_ledger("doctor", "--worker").code == 0
    silence = f"UPDATE {runtime.settings.schema_name}.workers SET heartbeat_at = '2020-02-02 02:02:02Z'"
    runtime.database.run(lambda connection: connection.exec_driver_sql(silence))
    dead = on_ledger("doctor", "--worker")
    assert dead.code == ExitCode.NEGATIVE
    assert dead.out.endswith("; the last sign of life was 2020-02-02 02:02:02 UTC\n")
