"""Places for stacks: short paths, because a unix socket's address has about 100 bytes."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A short empty folder of this test alone."""
    folder = Path(tempfile.mkdtemp(prefix="tc-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
