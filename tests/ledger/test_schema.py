"""The migrations, the tables as the program reads them, and the lifecycle table agree."""

import re
from collections.abc import Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, text

from think_celery.core.submission import TERMINAL, Kind, Status
from think_celery.errors import SchemaMismatch
from think_celery.ledger import migrate, schema
from think_celery.ledger.database import Database
from think_celery.settings import Settings


def test_tables_match_the_migrations(settings: Settings) -> None:
    expected = MetaData(schema=settings.schema_name)
    for table in schema.metadata.tables.values():
        table.to_metadata(expected, schema=settings.schema_name)
    database = Database(settings)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "compare_server_default": False,
                "include_name": lambda name, kind, parent: kind != "schema" or name == settings.schema_name,
                "include_object": lambda item, name, kind, reflected, other: (
                    kind in {"table", "column"} and name != "alembic_version"
                ),
            },
        )
        assert compare_metadata(context, expected) == []
    database.close()


def test_the_database_knows_the_statuses_of_the_program(settings: Settings) -> None:
    database = Database(settings)

    def names(constraint: str) -> set[str]:
        query = text("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = :name LIMIT 1")
        definition = database.run(
            lambda connection: connection.execute(query, {"name": constraint}).scalar_one()
        )
        return set(re.findall(r"'(\w+)'", definition))

    assert names("submissions_status") == set(Status)
    assert names("submissions_terminal") == set(TERMINAL)
    assert names("submissions_kind") == set(Kind)
    database.close()


def test_check_and_upgrade(settings: Settings, make_settings: Callable[..., Settings]) -> None:
    assert migrate.check(settings) == migrate.head() == migrate.upgrade(settings)
    empty = settings.model_copy(update={"schema_name": "not_there"})
    with pytest.raises(SchemaMismatch, match="run `think-celery migrate`"):
        migrate.check(empty)
    database = Database(settings)
    statement = text(database.sql("UPDATE {schema}.alembic_version SET version_num = '9999'"))
    database.run(lambda connection: connection.execute(statement))
    with pytest.raises(SchemaMismatch, match="the schema is newer"):
        migrate.check(settings)
    database.close()


def test_the_printed_sql_makes_the_same_schema(settings: Settings) -> None:
    by_hand = settings.model_copy(update={"schema_name": f"{settings.schema_name}_sql"})
    database = Database(by_hand)
    script = migrate.sql(by_hand)
    assert settings.database_url.get_secret_value() not in script
    database.run(lambda connection: connection.exec_driver_sql(script))
    database.close()
    assert migrate.check(by_hand) == migrate.head()
