"""Schedules, their occurrences, and signs of life of the beat."""

from alembic import context, op

from think_celery.ledger.migrations import functions, script

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and put the functions of this version in place."""
    schema = context.config.attributes["schema"]
    op.execute(script(__file__, schema=schema))
    op.execute(functions(schema=schema))


def downgrade() -> None:
    """Refuse: it would forget which occurrences have had their submission."""
    raise RuntimeError("this revision cannot be undone; restore a backup to go back")
