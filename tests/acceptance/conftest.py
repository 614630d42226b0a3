"""Producers for acceptance tests: a process' runtime that publishes to the workers under test."""

from collections.abc import Callable, Iterator

import pytest

from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.worker.app import build_app
from think_celery.worker.publisher import CeleryPublisher


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
