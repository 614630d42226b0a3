"""Real servers for every test: one PostgreSQL and one Valkey per test process, a schema per test."""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.own_postgres import Server
from tests.places import short_folder
from think_celery.core.address import Address
from think_celery.dev.servers import Addresses, embedded_servers
from think_celery.engine import presence
from think_celery.engine.runtime import Runtime
from think_celery.ledger import migrate
from think_celery.settings import Settings, load_settings
from think_celery.worker.app import build_app
from think_celery.worker.publisher import CeleryPublisher

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def servers() -> Iterator[Addresses]:
    """PostgreSQL and Valkey from the wheels, in a short-lived folder."""
    with short_folder() as folder, embedded_servers(folder) as addresses:
        yield addresses


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL of the test's own."""
    with short_folder() as folder:
        server = Server(folder)
        yield server
        server.stop()


@pytest.fixture
def make_settings(servers: Addresses) -> Callable[..., Settings]:
    """Build settings with a schema, a key prefix and a broker database of their own."""

    def make(**overrides: Any) -> Settings:
        number = next(_numbers)
        redis = servers.redis_url.rpartition("/")[0]
        settings = load_settings(
            {},
            **{
                "database_url": servers.database_url,
                "redis_url": f"{redis}/0",
                "broker_url": f"{redis}/{1 + number % 15}",
                "schema_name": f"t{os.getpid()}_{number}",
                "redis_prefix": f"t{os.getpid()}-{number}",
                **overrides,
            },
        )
        migrate.upgrade(settings)
        return settings

    return make


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    """Settings of an empty ledger."""
    return make_settings()


@pytest.fixture
def make_runtime(settings: Settings) -> Iterator[Callable[..., Runtime]]:
    """Open runtimes that stand for processes; each is a worker that has introduced itself."""
    opened: list[Runtime] = []

    def make(**overrides: Any) -> Runtime:
        changed = settings.model_copy(update=overrides)
        runtime = Runtime(changed, CeleryPublisher(build_app(changed), changed), pool="test")
        opened.append(runtime)
        presence.beat(runtime)
        return runtime

    yield make
    for runtime in opened:
        runtime.close()


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime]) -> Runtime:
    """One process that takes part."""
    return make_runtime()


@pytest.fixture
def agent() -> Address:
    """A new agent of the scripted test class."""
    return Address("Scripted", f"a-{uuid4()}")


@pytest.fixture
def produce() -> Iterator[Callable[[Settings], Runtime]]:
    """Open runtimes of producers; closed at the end of the test."""
    opened: list[Runtime] = []

    def open_runtime(settings: Settings) -> Runtime:
        opened.append(Runtime(settings, CeleryPublisher(build_app(settings), settings)))
        return opened[-1]

    yield open_runtime
    for runtime in opened:
        runtime.close()
