"""The tables of the ledger: agents, submissions, messages, workers."""

from alembic import context, op

from think_celery.ledger.migrations import script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.execute(script(__file__, schema=context.config.attributes["schema"]))


def downgrade() -> None:
    """Refuse: going back would throw accepted submissions away."""
    raise RuntimeError("the first revision cannot be undone; drop the schema to delete the ledger for good")
