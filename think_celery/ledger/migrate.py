"""Bring the ledger's schema up to date, print the SQL for it, or say what is wrong with it."""

import io
import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from think_celery.errors import SchemaMismatch
from think_celery.ledger.database import Database
from think_celery.settings import Settings

_ONE_AT_A_TIME = 0x7468696E6B  # advisory lock: two `migrate` at once, as in a deployment of several hosts


def upgrade(settings: Settings) -> str:
    """Create or update the schema; safe to call at any time and from several hosts at once.

    Returns:
        The revision that the schema now has.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    database = Database(settings)
    try:
        database.run(lambda connection: connection.exec_driver_sql("SELECT 1"))  # a readable error first
        with database.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
                config = _config(settings)
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
    finally:
        database.close()
    return head()


def sql(settings: Settings) -> str:
    """Return the SQL that creates the schema from nothing, for people who run migrations by hand."""
    buffer = io.StringIO()
    config = _config(settings)
    config.attributes["buffer"] = buffer
    command.upgrade(config, "head", sql=True)
    return buffer.getvalue()


def check(settings: Settings) -> str:
    """Return the schema's revision if this version of the program can use it.

    Raises:
        SchemaMismatch: The schema is missing, older or newer; the text names the remedy.
        LedgerUnavailable: PostgreSQL cannot be reached.
    """
    database = Database(settings)
    try:
        found = database.run(
            lambda connection: MigrationContext.configure(
                connection, opts={"version_table_schema": settings.schema_name}
            ).get_current_revision()
        )
    finally:
        database.close()
    if found is None:
        raise SchemaMismatch(f"schema {settings.schema_name!r} has no ledger yet; run `think-celery migrate`")
    if found != head():
        known = {
            revision.revision for revision in ScriptDirectory.from_config(_config(settings)).walk_revisions()
        }
        remedy = (
            "run `think-celery migrate`" if found in known else "update think-celery: the schema is newer"
        )
        raise SchemaMismatch(
            f"schema {settings.schema_name!r} has revision {found}, this version needs {head()}; {remedy}"
        )
    return found


def head() -> str:
    """Return the revision that this version of the program needs."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    revision = ScriptDirectory.from_config(config).get_current_head()
    assert revision is not None
    return revision


def _config(settings: Settings) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["schema"] = settings.schema_name
    return config
