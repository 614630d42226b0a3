"""Chats while PostgreSQL or Redis is away, or a process dies: each ends, once, as the ledger says."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.engine.outage import Line
from tests.engine.stage import kill
from tests.engine.talking import Gate, Notes, Talk, calling, saying, served
from tests.processes import worker
from tests.stream.conftest import start_server
from think_celery import AbortController, AgentHandle
from think_celery.core.address import Address
from think_celery.engine import presence
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.settings import Settings
from think_celery.stream import hub
from think_celery.testing import eventually

WAIT = 20.0
Make = Callable[..., Runtime]


@pytest.fixture
def line(settings: Settings) -> Iterator[Line]:
    """A way to the ledger that can be cut."""
    made = Line(settings.database_url.get_secret_value())
    yield made
    made.close()


@pytest.fixture
def over_line(line: Line, make_runtime: Make) -> Runtime:
    """A worker process that reaches the ledger over that line, and gives up soon."""
    return make_runtime(database_url=SecretStr(line.url), database_timeout=0.5)


def another(talk: Talk, caller: Runtime, worker: Runtime | None = None) -> Talk:
    return Talk(caller, worker or caller, talk.address)


def a_moment() -> None:
    """Let an outage last, longer than any call tries."""
    threading.Event().wait(1.5)


def test_a_turn_that_runs_here_goes_on_without_the_ledger(over_line: Runtime, line: Line, near: Talk) -> None:
    talk, gate, notes = another(near, over_line), Gate(), Notes()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.chat("hello", notes)) as results:
        assert gate.reached.wait(WAIT)
        with line.cut():
            gate.open()
            eventually(lambda: notes.text == "before after")
            a_moment()
            assert notes.heard == ["start", "event"]
    assert (results[0].status, results[0].text) == ("completed", "before after")
    assert notes.heard == ["start", "event", "done"]
    talk.leaves_nothing()


def test_a_turn_that_waits_here_is_not_forgotten_without_the_ledger(
    over_line: Runtime, line: Line, near: Talk
) -> None:
    """The lane is at work in another process, and this one cannot see it for a while."""
    talk, gate, notes = another(near, over_line), Gate(), Notes()
    talk.play.say = gate.say
    with calling(lambda: near.handle.chat("one")) as first:
        assert gate.reached.wait(WAIT)
        with calling(lambda: talk.handle.chat("two", notes)) as second:
            eventually(lambda: notes.request_id and near.handle.inspect_submission(notes.request_id))
            with line.cut():
                a_moment()
            assert not second
            gate.open()
    assert (first[0].status, second[0].status) == ("completed", "completed")
    assert notes.heard == ["start", "event", "done"]
    assert [role for role, _ in near.texts()] == ["user", "assistant"] * 2
    talk.leaves_nothing()


def test_a_running_turn_is_stopped_without_the_ledger(over_line: Runtime, line: Line, near: Talk) -> None:
    talk, gate, notes, controller = another(near, over_line), Gate(), Notes(), AbortController()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.chat("one", notes, signal=controller.signal)) as results:
        assert gate.reached.wait(WAIT)
        with line.cut():
            controller.abort("enough")
            eventually(lambda: not over_line.running)
            a_moment()
    assert (results[0].status, results[0].text) == ("aborted", "before ")
    assert notes.heard == ["start", "event"]
    assert controller.signal.listener_count == 0
    talk.leaves_nothing()


def test_a_cancel_is_not_forgotten_without_the_ledger(over_line: Runtime, line: Line, near: Talk) -> None:
    talk, gate, notes, controller = another(near, over_line), Gate(), Notes(), AbortController()
    talk.play.say = gate.say
    with calling(lambda: near.handle.chat("one")) as first:
        assert gate.reached.wait(WAIT)
        with calling(lambda: talk.handle.chat("two", notes, signal=controller.signal)) as second:
            eventually(lambda: notes.request_id and near.handle.inspect_submission(notes.request_id))
            with line.cut():
                controller.abort("enough")
                a_moment()
        gate.open()
    assert (second[0].status, second[0].error) == ("aborted", "enough")
    assert notes.heard == ["start"]
    assert first[0].status == "completed"
    assert controller.signal.listener_count == 0
    talk.leaves_nothing()


def test_from_afar_events_come_without_the_ledger(
    line: Line, settings: Settings, produce: Callable[[Settings], Runtime], near: Talk
) -> None:
    changed = {"database_url": SecretStr(line.url), "database_timeout": 0.5}
    far = another(near, produce(settings.model_copy(update=changed)), near.worker)
    gate, notes = Gate(), Notes()
    far.play.say = gate.say
    with served(near.worker, near.address), calling(lambda: far.handle.chat("hello", notes)) as results:
        assert gate.reached.wait(WAIT)
        with line.cut():
            eventually(lambda: notes.text == "before ")
            a_moment()
        gate.open()
    assert (results[0].status, results[0].text) == ("completed", "before after")
    assert notes.heard == ["start", "event", "done"]
    far.leaves_nothing()


@pytest.fixture
def valkey() -> Iterator[Any]:
    """A Redis that is only for events, so that it may be stopped."""
    server = start_server(config={"save": "", "loglevel": "warning"})
    yield server
    server.terminate()


def with_redis(settings: Settings, server: Any) -> dict[str, Any]:
    return {"redis_url": SecretStr(f"redis://127.0.0.1:{server.port}/0"), "redis_timeout": 0.5}


def test_a_turn_that_runs_here_needs_no_redis(
    make_runtime: Make, settings: Settings, valkey: Any, near: Talk
) -> None:
    talk, gate, notes = another(near, make_runtime(**with_redis(settings, valkey))), Gate(), Notes()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.chat("hello", notes)) as results:
        assert gate.reached.wait(WAIT)
        valkey.stop()
        gate.open()
        eventually(lambda: notes.text == "before after")
    assert (results[0].status, results[0].text) == ("completed", "before after")
    assert notes.heard == ["start", "event", "done"]
    assert talk.handle.chat("again", Notes()).status == "completed"


@pytest.mark.parametrize("comes_back", [False, True])
def test_from_afar_the_ledger_ends_a_chat_whose_redis_went_away(
    make_runtime: Make,
    settings: Settings,
    produce: Callable[[Settings], Runtime],
    valkey: Any,
    near: Talk,
    comes_back: bool,
) -> None:
    """What was lost on the way is said afresh, from its `start` on."""
    changed = with_redis(settings, valkey)
    caller = produce(settings.model_copy(update=changed))
    far = another(near, caller, make_runtime(**changed))
    gate, notes = Gate(), Notes()
    far.play.say = gate.say
    with served(far.worker, far.address), calling(lambda: far.handle.chat("hello", notes)) as results:
        assert gate.reached.wait(WAIT)
        eventually(lambda: notes.text == "before ")
        valkey.stop()
        gate.open()
        if comes_back:
            eventually(lambda: far.handle.inspect_submission(notes.request_id).status == "completed")  # type: ignore[union-attr]
            valkey.start()
    assert (results[0].status, results[0].text) == ("completed", "before after")
    assert notes.heard == ["start", "event", "done"]
    last = len(notes.types) - notes.types[::-1].index("start") - 1
    notes.chunks = notes.chunks[last:]
    assert notes.text == "before after"


def test_a_slow_caller_from_afar_is_given_what_it_missed(
    make_runtime: Make,
    settings: Settings,
    produce: Callable[[Settings], Runtime],
    near: Talk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More is said than Redis keeps; the turn does not wait, and at the end comes the whole message."""
    monkeypatch.setattr(hub, "_QUEUE_LIMIT", 2)  # and than this process keeps
    worker = make_runtime(stream_max_frames=100)
    far = another(near, produce(settings), worker)
    gate = threading.Event()
    notes = Notes(event=lambda _: gate.wait(WAIT))
    far.play.say = saying(*(f"{number} " for number in range(3000)))
    with served(worker, far.address), calling(lambda: far.handle.chat("hello", notes)) as results:
        assert notes.begun.wait(WAIT)
        eventually(lambda: far.play.responses, describe="the turn does not wait for its caller")
        gate.set()
    last = len(notes.types) - notes.types[::-1].index("start") - 1
    assert last > 0, "it was told afresh"
    notes.chunks = notes.chunks[last:]
    assert notes.text == results[0].text
    assert results[0].text.endswith("2999 ")
    assert notes.heard == ["start", "event", "done"]
    far.leaves_nothing()


def test_a_caller_whose_process_was_presumed_dead(near: Talk, make_runtime: Make) -> None:
    gate, notes = Gate(), Notes()
    near.play.say = gate.say
    watcher = make_runtime(lease_seconds=0.2, sweep_seconds=0.05)
    with calling(lambda: near.handle.chat("hello", notes)) as results:
        assert gate.reached.wait(WAIT)
        kill(near.worker)
        eventually(lambda: sweep(watcher).rescued == 1)
        eventually(lambda: beaten(near.worker) and results)
    assert results[0].status == "interrupted"
    assert "the worker died" in results[0].error
    assert notes.heard == ["start", "event", "interrupted"]
    gate.open()
    near.leaves_nothing()


def test_a_caller_whose_turn_another_thread_of_its_process_ran_and_lost(
    near: Talk, make_runtime: Make
) -> None:
    """A bell's thread has the lane when the chat comes, so the call only waits for what that thread tells."""
    gate, second, notes = Gate(), Gate(), Notes()
    watcher = make_runtime(lease_seconds=0.2, sweep_seconds=0.05)
    near.play.say = gate.say
    receipt = near.handle.submit_messages("one")
    with served(near.worker, near.address):
        assert gate.reached.wait(WAIT)
        with calling(lambda: near.handle.chat("two", notes)) as results:
            eventually(lambda: notes.request_id and near.handle.inspect_submission(notes.request_id))
            near.play.say = second.say
            gate.open()
            assert second.reached.wait(WAIT)
            kill(near.worker)
            eventually(lambda: sweep(watcher).rescued == 1)
            eventually(lambda: beaten(near.worker) and results)
        assert results[0].status == "interrupted"
        assert notes.heard == ["start", "event", "interrupted"]
        second.open()
    assert near.handle.inspect_submission(receipt.submission_id).status == "completed"  # type: ignore[union-attr]
    near.leaves_nothing()


def beaten(runtime: Runtime) -> bool:
    presence.beat(runtime)
    return True


@pytest.mark.timeout(90)
def test_a_killed_worker_interrupts_those_who_follow(
    make_settings: Callable[..., Settings], produce: Callable[[Settings], Runtime], tmp_path: Path
) -> None:
    settings = make_settings(
        agents=("tests.agents",), heartbeat_seconds=0.3, lease_seconds=1.5, sweep_seconds=0.3
    )
    address = Address("Scripted", "far")
    handle = AgentHandle("Scripted", "far", runtime=produce(settings))
    notes = Notes()
    with worker(settings, tmp_path) as process:
        with calling(lambda: handle.chat("sleep 60", notes)) as results:
            assert notes.begun.wait(WAIT)
            eventually(lambda: notes.text)
            process.kill()
            with worker(settings, tmp_path, name="next"):
                eventually(lambda: results, timeout=40)
                assert handle.chat("say hi", timeout=WAIT).text == "hi "
    assert results[0].status == "interrupted"
    assert results[0].request_id == notes.request_id
    assert notes.heard == ["start", "event", "interrupted"]
    row = handle.inspect_submission(notes.request_id)
    assert row is not None
    assert row.status == "error"
    assert row.agent == str(address)


@pytest.mark.timeout(90)
def test_a_turn_that_its_worker_had_only_accepted_is_run_by_the_next(
    make_settings: Callable[..., Settings], produce: Callable[[Settings], Runtime], tmp_path: Path
) -> None:
    settings = make_settings(agents=("tests.agents",))
    handle = AgentHandle("Scripted", "far", runtime=produce(settings))
    notes = Notes()
    with calling(lambda: handle.chat("say hi", notes)) as results:
        eventually(lambda: notes.request_id and handle.inspect_submission(notes.request_id))
        with worker(settings, tmp_path):
            eventually(lambda: results, timeout=40)
    assert (results[0].status, results[0].text) == ("completed", "hi ")
    assert notes.heard == ["start", "event", "done"]
