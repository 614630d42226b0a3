"""The turn API: rows that their caller runs, what came with them, and the response hook."""

from alembic import context, op

from think_celery.ledger.migrations import functions, script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and put the functions of this version in place."""
    schema = context.config.attributes["schema"]
    op.execute(script(__file__, schema=schema))
    op.execute(functions(schema=schema))


def downgrade() -> None:
    """Refuse: the older program would run rows that only their caller may run."""
    raise RuntimeError("this revision cannot be undone; restore a backup to go back")
