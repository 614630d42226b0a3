"""Alembic's entry: runs on a connection, or writes SQL, whichever `ledger/migrate.py` set up."""

from alembic import context
from sqlalchemy import text

schema = context.config.attributes["schema"]
connection = context.config.attributes.get("connection")

if connection is None:
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        version_table_schema=schema,
        output_buffer=context.config.attributes["buffer"],
        as_sql=True,
    )
    context.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=connection, version_table_schema=schema)
    with context.begin_transaction():
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
        context.run_migrations()
