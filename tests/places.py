"""Folders for stacks and servers: short paths, and in memory where that is possible."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM = 2**30


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make an empty folder, and remove it at the end of the block.

    Its path is short, because a unix socket's address has about 100 bytes. In memory a new PostgreSQL cluster
    is there in half a second; a disk that has to confirm every file takes several.
    """
    folder = Path(tempfile.mkdtemp(prefix="tc-", dir=_roomy()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _roomy() -> Path:
    try:
        # A container's is often too small for a few clusters.
        return _MEMORY if shutil.disk_usage(_MEMORY).free > _ROOM else Path("/tmp")
    except OSError:
        return Path("/tmp")
