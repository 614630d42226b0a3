"""Alembic revisions; each is a Python file beside a SQL file in which `{schema}` stands for the schema's
name."""

from pathlib import Path


def script(revision_file: str, *, schema: str) -> str:
    """Return the SQL beside a revision, with the schema's name filled in."""
    return Path(revision_file).with_suffix(".sql").read_text().replace("{schema}", schema)
