"""A process and an agent whose turns and hooks a test controls, and callers near and far from it."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.engine.stage import Stage
from tests.engine.talking import Talk, served
from tests.engine.timing import Clockwork
from think_celery.core.address import Address
from think_celery.engine.runtime import Runtime, use
from think_celery.settings import Settings


@pytest.fixture
def stage(runtime: Runtime) -> Stage:
    """One process and a new agent of the class that tells its test everything."""
    return Stage(runtime, Address("Witness", f"w-{uuid4()}"))


@pytest.fixture
def near(runtime: Runtime) -> Talk:
    """A new agent, called in the process that runs it."""
    return Talk(runtime, runtime, Address("Talker", f"t-{uuid4()}"))


@pytest.fixture
def far(runtime: Runtime, settings: Settings, produce: Callable[[Settings], Runtime]) -> Iterator[Talk]:
    """A new agent, called from a producer; a worker serves it."""
    talk = Talk(produce(settings), runtime, Address("Talker", f"t-{uuid4()}"))
    with served(runtime, talk.address):
        yield talk


@pytest.fixture(params=["near", "far"])
def talk(request: pytest.FixtureRequest) -> Talk:
    """A new agent, called from near and from afar."""
    chosen: Talk = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def own_runtime(runtime: Runtime) -> Runtime:
    """The process whose runtime handles without one use, as in a worker."""
    use(runtime)
    return runtime


@pytest.fixture
def clockwork(runtime: Runtime) -> Clockwork:
    """One process and a new agent whose scheduled tasks the test declares."""
    return Clockwork(runtime, Address("Timed", f"t-{uuid4()}"))
