"""Ringing: what arrives, what is left behind on Redis, and how long it takes when nobody answers."""

import json
import threading
import time
from base64 import b64decode
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery

from tests.worker.conftest import OwnValkey
from think_celery.core.address import Address
from think_celery.dispatch import Dispatcher
from think_celery.settings import Settings, load_settings
from think_celery.stream.announce import Announcer
from think_celery.testing import eventually
from think_celery.worker.app import build_app
from think_celery.worker.publisher import CeleryPublisher

THREADS = 60


def ring(dispatcher: Dispatcher, name: str = "alice", *, announce: bool = True) -> bool:
    return dispatcher.nudge(Address("Scripted", name), uuid4(), task_id=f"{uuid4()}.1", announce=announce)


def sent(broker: "redis.Redis", queue: str) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in broker.lrange(queue, 0, -1)]


@pytest.fixture
def dispatcher(settings: Settings) -> Dispatcher:
    return Dispatcher(CeleryPublisher(build_app(settings), settings), settings, Announcer(settings))


def test_a_nudge_names_the_agent_and_the_row(dispatcher: Dispatcher, broker: "redis.Redis") -> None:
    uid = uuid4()
    assert dispatcher.nudge(Address("Scripted", "a.b"), uid, task_id=f"{uid}.3", announce=False)
    [message] = sent(broker, "agent.Scripted.a%2Eb")
    args, kwargs, _ = json.loads(b64decode(message["body"]))
    assert (args, kwargs) == (["Scripted", "a.b", str(uid)], {})
    assert message["headers"]["task"] == "think.run_turn"
    assert message["headers"]["id"] == f"{uid}.3"
    assert message["headers"]["ignore_result"] is True
    assert message["headers"]["expires"] is None


def test_many_agents_leave_nothing_but_their_messages(settings: Settings, broker: "redis.Redis") -> None:
    app = build_app(settings)
    dispatcher = Dispatcher(CeleryPublisher(app, settings), settings, Announcer(settings))
    for number in range(50):
        assert ring(dispatcher, f"a{number}", announce=False)
    assert not [key for key in broker.keys("*") if not key.startswith("agent.Scripted.a")]
    assert list(app.amqp.queues) == ["think"]


def test_an_announcement_comes_before_the_message(settings: Settings, broker: "redis.Redis") -> None:
    heard: list[tuple[str, int]] = []

    class Recording(Announcer):
        def announce(self, queue: str) -> int:
            heard.append((queue, broker.llen(queue)))
            return 0

    assert ring(
        Dispatcher(CeleryPublisher(build_app(settings), settings), settings, Recording(settings)), "bob"
    )
    assert heard == [("agent.Scripted.bob", 0)]


def test_a_teams_routes_and_defaults_do_not_bend_the_way(settings: Settings, broker: "redis.Redis") -> None:
    app = Celery("team", broker=settings.broker_url.get_secret_value(), set_as_current=False)
    app.conf.update(
        task_routes={"*": {"queue": "elsewhere", "exchange": "ex", "routing_key": "rk"}},
        task_create_missing_queues=False,
        task_default_exchange_type="topic",
        task_serializer="yaml",
        task_default_priority=9,
    )
    assert ring(
        Dispatcher(CeleryPublisher(app, settings), settings, Announcer(settings)), "carol", announce=False
    )
    assert [message["content-type"] for message in sent(broker, "agent.Scripted.carol")] == [
        "application/json"
    ]


def settings_for(valkey: OwnValkey) -> Settings:
    return load_settings(
        {}, database_url="postgresql://nowhere/none", redis_url=valkey.url, publish_pause=1.0
    )


def crowd(dispatcher: Dispatcher, *, announce: bool) -> tuple[float, int]:
    """60 threads ring at once: the longest call in seconds, and how many were rung."""
    times: list[float] = []
    results: list[bool] = []
    together = threading.Barrier(THREADS)

    def one(number: int) -> None:
        together.wait()
        start = time.monotonic()
        results.append(ring(dispatcher, f"a{number}", announce=announce))
        times.append(time.monotonic() - start)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(times), sum(results)


@pytest.mark.parametrize("announce", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_sixty_threads_and_a_frozen_broker(own_valkey: OwnValkey, announce: bool, warm: bool) -> None:
    settings = settings_for(own_valkey)
    dispatcher = Dispatcher(CeleryPublisher(build_app(settings), settings), settings, Announcer(settings))
    if warm:
        assert crowd(dispatcher, announce=announce)[1] == THREADS
    with own_valkey.frozen():
        longest, rung = crowd(dispatcher, announce=announce)
        assert (longest < 3.0, rung) == (True, 0)
        longest, rung = crowd(dispatcher, announce=announce)
        assert (longest < 1.0, rung) == (True, 0)  # the breaker: at most one call tries
    eventually(lambda: ring(dispatcher, announce=announce))
    assert crowd(dispatcher, announce=announce)[1] == THREADS


def test_sixty_threads_and_a_stopped_broker(own_valkey: OwnValkey) -> None:
    settings = settings_for(own_valkey)
    dispatcher = Dispatcher(CeleryPublisher(build_app(settings), settings), settings, Announcer(settings))
    assert ring(dispatcher)
    own_valkey.stop()
    longest, rung = crowd(dispatcher, announce=True)
    assert (longest < 3.0, rung) == (True, 0)
    own_valkey.start()
    eventually(lambda: ring(dispatcher))


def test_a_team_without_timeouts_is_bounded_as_well(own_valkey: OwnValkey) -> None:
    settings = settings_for(own_valkey)
    app = Celery("team", broker=own_valkey.url, set_as_current=False)
    dispatcher = Dispatcher(CeleryPublisher(app, settings), settings, Announcer(settings))
    assert ring(dispatcher)
    with own_valkey.frozen():
        longest, rung = crowd(dispatcher, announce=False)
    assert (longest < 3.0, rung) == (True, 0)


def test_only_announcing_fails(settings: Settings, broker: "redis.Redis") -> None:
    class Deaf(Announcer):
        def announce(self, queue: str) -> int:
            raise ConnectionError("nobody there")

    dispatcher = Dispatcher(CeleryPublisher(build_app(settings), settings), settings, Deaf(settings))
    assert not ring(dispatcher, "dora")  # workers that consume the queue already hear it, others do not
    assert len(sent(broker, "agent.Scripted.dora")) == 1


def test_closing_gives_the_connections_back(dispatcher: Dispatcher, broker: "redis.Redis") -> None:
    def clients() -> int:
        return len([client for client in broker.client_list() if client["db"] == str(_db(broker))])

    before = clients()
    assert ring(dispatcher, announce=False)
    assert clients() > before
    dispatcher.close()
    eventually(lambda: clients() == before)
    assert ring(dispatcher, announce=False)
    dispatcher.close()


def _db(broker: "redis.Redis") -> Any:
    return broker.connection_pool.connection_kwargs["db"]
