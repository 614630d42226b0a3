"""Processes that end at any step of an occurrence, and servers that forget: one submission all the same."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from tests.engine.outage import Line
from tests.engine.timing import Clockwork, handler, prompt
from tests.own_postgres import Server
from think_celery.core.address import Address
from think_celery.engine import schedules
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.worker.publisher import CeleryPublisher

MINUTE = timedelta(minutes=1)
STEPS = {
    "text": ("fire",),
    "function": ("fire", "take_occurrence", "submit_occurrence"),
    "handler": ("fire", "take_occurrence", "keep_occurrence"),
}
"""What the ledger is asked for an occurrence of each kind of task, in order."""
CRASHES = [
    *((kind, step, when) for kind, steps in STEPS.items() for step in steps for when in ("before", "after")),
    *((kind, "publish", "before") for kind in STEPS),
]


_SEAMS = {"publish", *(step for steps in STEPS.values() for step in steps)}


class _Crash(BaseException):
    """The process ends here: nobody handles this."""


class Crashing:
    """Ends the process before or after steps of the ledger and before messages, as it is told."""

    def __init__(self, clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
        self.choose: Callable[[str, str], bool] = lambda step, when: False
        self.count = 0
        self._step = clockwork.runtime.database.step
        self._publish = CeleryPublisher.publish
        monkeypatch.setattr(clockwork.runtime.database, "step", self.step)
        monkeypatch.setattr(CeleryPublisher, "publish", self.publish)

    def step(self, function: str, parameters: Any) -> Any:
        self._may_crash(function, "before")
        answer = self._step(function, parameters)
        self._may_crash(function, "after")
        return answer

    def publish(self, *args: Any, **kwargs: Any) -> None:
        self._may_crash("publish", "before")

    def _may_crash(self, step: str, when: str) -> None:
        if step in _SEAMS and self.choose(step, when):
            self.count += 1
            raise _Crash


@pytest.fixture
def crashing(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> Crashing:
    return Crashing(clockwork, monkeypatch)


def work(clockwork: Clockwork) -> None:
    """Do what processes do until they end: tick, answer bells."""
    with suppress(_Crash):
        clockwork.dispatch()
    for row in clockwork.open():
        with suppress(_Crash):
            clockwork.run(row.slot)


def time_passes(clockwork: Clockwork) -> None:
    """Leases run out, and bells are to be rung again; how often is not counted here."""
    clockwork.sql("UPDATE {schema}.occurrences SET due_at = now(), strikes = 0 WHERE due_at IS NOT NULL")


@pytest.mark.spec("C80")
@pytest.mark.parametrize(("kind", "step", "when"), CRASHES)
def test_a_crash_at_each_step(
    clockwork: Clockwork, crashing: Crashing, kind: str, step: str, when: str
) -> None:
    called: list[Any] = []
    task = {"text": prompt("words"), "function": prompt(lambda: "words"), "handler": handler(called.append)}
    clockwork.declare(report=task[kind])
    clockwork.late()
    crashing.choose = lambda *at: at == (step, when) and crashing.count == 0
    for _ in range(3):
        work(clockwork)
        time_passes(clockwork)
    assert crashing.count == 1
    [past] = clockwork.past()
    if kind == "handler":
        # At least once: what it did before its end was noted is done again, with the same key.
        assert past.state == "handled"
        assert len(called) == (2 if (step, when) == ("keep_occurrence", "before") else 1)
        assert len({context.idempotency_key for context in called}) == 1
    else:
        assert clockwork.texts() == ["words"]
        assert past.state in ("submitted", "done")


@pytest.mark.spec("C80", "C100")
def test_two_hundred_crashes(clockwork: Clockwork, crashing: Crashing) -> None:
    words = {f"task{number}": f"number {number}" for number in range(10)}
    tasks = {
        name: prompt(text if name[-1] in "02468" else partial(str, text)) for name, text in words.items()
    }
    clockwork.declare(**tasks)
    dice, rounds = random.Random(7), 0
    while crashing.count < 200:
        rounds += 1
        for task in tasks:
            clockwork.late(timedelta(minutes=rounds), task)
        crashing.choose = lambda step, when: dice.random() < 0.4
        for _ in range(5):
            work(clockwork)
            time_passes(clockwork)
        crashing.choose = lambda step, when: False
        work(clockwork)
        clockwork.drain()
    assert len(clockwork.past()) == 10 * rounds
    assert sorted(clockwork.texts()) == sorted([*words.values()] * rounds)


class _Lossy(Line):
    """Lets one statement through, and loses the connection before its answer comes."""

    word = b""
    lost = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, far_writer}
        asked = False

        async def there() -> None:
            nonlocal asked
            while data := await reader.read(65536):
                asked = asked or bool(self.word and self.word in data)
                far_writer.write(data)
            far_writer.close()  # which ends the way back

        async def back() -> None:
            while data := await far_reader.read(65536):
                if asked:
                    self.word, self.lost = b"", self.lost + 1
                    writer.transport.abort()
                    break
                writer.write(data)

        with suppress(OSError):
            await asyncio.gather(there(), back())
        for each in (writer, far_writer):
            each.transport.abort()
        self._writers -= {writer, far_writer}


@pytest.fixture
def lossy(settings: Settings) -> Iterator[_Lossy]:
    line = _Lossy(settings.database_url.get_secret_value())
    yield line
    line.close()


@pytest.mark.spec("C82")
@pytest.mark.parametrize("words", ["words", lambda: "words"], ids=["text", "function"])
def test_the_connection_is_lost_at_the_commit(
    make_runtime: Callable[..., Runtime], lossy: _Lossy, clockwork: Clockwork, words: Any
) -> None:
    """PostgreSQL has committed, and who asked does not know: it asks again, and so does the next tick."""
    clockwork.declare(report=prompt(words))
    clockwork.late()
    far = make_runtime(database_url=SecretStr(lossy.url))
    lossy.word = b".fire("
    assert clockwork.dispatch(runtime=far) == {"moved": 1}
    assert clockwork.dispatch(runtime=far) == {}
    for row in clockwork.open():
        lossy.word = b".submit_occurrence("
        clockwork.run(row.slot, runtime=far)
    assert lossy.lost == (1 if words == "words" else 2)
    assert clockwork.texts() == ["words"]
    assert len(clockwork.past()) == 1


@pytest.mark.spec("C83")
def test_redis_forgets_the_bells_of_fifty(clockwork: Clockwork) -> None:
    tasks = {f"task{number}": prompt(partial(str, f"number {number}")) for number in range(50)}
    clockwork.declare(**tasks)
    for task in tasks:
        clockwork.late(task=task)
    broker = redis.Redis.from_url(clockwork.runtime.settings.broker_url.get_secret_value())
    broker.flushdb()
    schedules.answer_tick(clockwork.runtime)
    assert _bells(broker) == 50
    broker.flushall()
    assert _bells(broker) == 0
    assert schedules.dispatch(clockwork.runtime).rung == 0
    clockwork.sql("UPDATE {schema}.occurrences SET due_at = now()")  # THINK_NUDGE_AFTER_SECONDS later
    assert schedules.answer_tick(clockwork.runtime).rung == 50
    assert _bells(broker) == 50
    broker.close()
    clockwork.run_open()
    assert sorted(clockwork.texts()) == sorted(f"number {number}" for number in range(50))
    assert schedules.dispatch(clockwork.runtime).rung == 0


def _bells(broker: Any) -> int:
    return sum(broker.llen(key) for key in broker.scan_iter() if broker.type(key) == b"list")


@pytest.mark.spec("C75")
def test_an_hour_of_minutes_with_turns_of_five(clockwork: Clockwork) -> None:
    """As many submissions as turns fit, never two at once, and each skipped due time is counted."""
    clockwork.declare(report=prompt(schedule="every 1 minute"))
    begin = datetime(2026, 6, 1, tzinfo=UTC)
    clockwork.move(begin)
    begun: datetime | None = None
    for minute in range(60):
        now = begin + minute * MINUTE
        if begun is not None and now - begun >= 5 * MINUTE:
            clockwork.drain()
            begun = None
        clockwork.sql("UPDATE {schema}.schedules SET due_at = next_run_at")
        outcome = clockwork.dispatch(now=now)
        assert outcome == ({"submitted": 1} if begun is None else {"held": 1})
        begun = begun or now
        open_rows = clockwork.sql("SELECT 1 FROM {schema}.submissions WHERE completed_at IS NULL")
        assert len(open_rows) == 1
    past = clockwork.past()
    assert len(past) == 12
    following = clockwork.task().next_run_at
    assert following is not None
    assert sum(1 + each.missed_count for each in past) == (following - begin) / MINUTE == 56


@pytest.mark.spec("C92")
def test_a_restart_of_the_ledger_within_the_repeated_hour(
    own_postgres: Server,
    make_settings: Callable[..., Settings],
    produce: Callable[[Settings], Runtime],
) -> None:
    settings = make_settings(database_url=own_postgres.url)
    clockwork = Clockwork(produce(settings), Address("Timed", "london"))
    clockwork.declare(report=prompt(schedule="every day at 01:30 in Europe/London"))
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    clockwork.move(first)
    assert clockwork.dispatch(now=first) == {"submitted": 1}
    own_postgres.crash()
    own_postgres.start()
    clockwork.drain()
    following = clockwork.task().next_run_at
    assert following == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert following > second
    clockwork.move(first)  # somebody thinks it is due once more
    assert clockwork.dispatch(now=second) == {"known": 1}
    assert clockwork.task().next_run_at == following
    assert clockwork.texts() == ["write the report"]
