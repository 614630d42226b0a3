"""Announcements reach every listening worker; a dead or frozen Redis costs a bounded moment."""

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.stream.stage import settings_for
from think_celery.errors import StreamUnavailable
from think_celery.settings import Settings
from think_celery.stream.announce import AnnouncementListener, Announcer
from think_celery.stream.connection import make_sync


@contextmanager
def listening(settings: Settings) -> Iterator["queue.Queue[str | None]"]:
    heard: queue.Queue[str | None] = queue.Queue()
    listener = AnnouncementListener(settings, heard.put)
    listener.start()
    try:
        assert heard.get(timeout=5) is None
        yield heard
    finally:
        listener.stop()


def test_every_listener_hears_a_queue(settings: Settings) -> None:
    announcer = Announcer(settings)
    with listening(settings) as one, listening(settings) as two:
        assert announcer.announce("agent.TaskAgent.%C3%A9") == 2
        assert one.get(timeout=5) == two.get(timeout=5) == "agent.TaskAgent.%C3%A9"
    assert announcer.announce("agent.TaskAgent.b") == 0
    announcer.close()


def test_after_a_reconnect_the_wanted_set_is_to_be_read_again(settings: Settings) -> None:
    admin: Any = make_sync(settings)
    announcer = Announcer(settings)
    with listening(settings) as heard:
        for number in range(3):
            admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            assert heard.get(timeout=5) is None
            announcer.announce(str(number))
            assert heard.get(timeout=5) == str(number)
    announcer.close()
    admin.close()


def test_a_listener_survives_a_restart(own_valkey: Any) -> None:
    settings = settings_for(f"redis://127.0.0.1:{own_valkey.port}/0")
    announcer = Announcer(settings)
    with listening(settings) as heard:
        assert announcer.announce("before") == 1
        own_valkey.stop()
        own_valkey.start()
        assert heard.get(timeout=5) == "before"
        assert heard.get(timeout=5) is None
        assert announcer.announce("after") == 1
        assert heard.get(timeout=5) == "after"
    announcer.close()


def test_a_raising_callback_harms_nobody(settings: Settings) -> None:
    heard: queue.Queue[str | None] = queue.Queue()

    def on_queue(name: str | None) -> None:
        heard.put(name)
        raise RuntimeError("broken")

    listener, announcer = AnnouncementListener(settings, on_queue), Announcer(settings)
    listener.start()
    assert heard.get(timeout=5) is None
    for name in ("a", "b"):
        announcer.announce(name)
        assert heard.get(timeout=5) == name
    listener.stop()
    announcer.close()


@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:1/0"], ids=["connected", "without Redis"])
def test_a_listener_stops_at_once(settings: Settings, url: str | None) -> None:
    listener = AnnouncementListener(settings_for(url) if url else settings, lambda _: None)
    listener.start()
    began = time.monotonic()
    listener.stop()
    listener.stop()
    assert time.monotonic() - began < 1
    assert not listener._thread.is_alive()


def test_announcing_without_redis_fails_at_once() -> None:
    with pytest.raises(StreamUnavailable, match=r"agent\.TaskAgent\.a"):
        Announcer(settings_for("redis://127.0.0.1:1/0")).announce("agent.TaskAgent.a")


def test_a_frozen_redis_costs_one_timeout_for_sixty_threads(own_valkey: Any) -> None:
    settings = settings_for(f"redis://127.0.0.1:{own_valkey.port}/0", publish_timeout=0.5)
    announcer = Announcer(settings)
    announcer.announce("warm")
    os.kill(own_valkey._process.pid, signal.SIGSTOP)
    failed: list[float] = []

    def call() -> None:
        began = time.monotonic()
        with pytest.raises(StreamUnavailable):
            announcer.announce("agent.TaskAgent.a")
        failed.append(time.monotonic() - began)

    threads = [threading.Thread(target=call) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(failed) == 60
    assert max(failed) < 1.5
    announcer.close()
