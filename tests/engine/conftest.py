"""A process and an agent whose turns and hooks a test controls."""

from uuid import uuid4

import pytest

from tests.engine.stage import Stage
from think_celery.core.address import Address
from think_celery.engine.runtime import Runtime


@pytest.fixture
def stage(runtime: Runtime) -> Stage:
    """One process and a new agent of the class that tells its test everything."""
    return Stage(runtime, Address("Witness", f"w-{uuid4()}"))
