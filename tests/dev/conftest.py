"""Places for stacks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import short_folder


@pytest.fixture
def place() -> Iterator[Path]:
    """A short empty folder of this test alone."""
    with short_folder() as folder:
        yield folder
