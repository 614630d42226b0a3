"""Alembic revisions, and the functions of the ledger.

A revision is a Python file beside a SQL file of tables. The functions, one per step, stand in `functions/` as
they are now; a revision that needs changed ones puts all of them in place anew. `{schema}` stands for the
schema's name.
"""

import re
from pathlib import Path

_FUNCTIONS = Path(__file__).parent / "functions"
_RETIRED: tuple[str, ...] = ()
"""Functions of earlier versions that are no longer there."""


def script(revision_file: str, *, schema: str) -> str:
    """Return the SQL beside a revision, with the schema's name filled in."""
    return Path(revision_file).with_suffix(".sql").read_text().replace("{schema}", schema)


def functions(*, schema: str) -> str:
    """Return the SQL that replaces the ledger's functions by those of this version."""
    files = [file.read_text() for file in sorted(_FUNCTIONS.glob("*.sql"))]
    named = sorted(
        {name for text in files for name in re.findall(r"CREATE FUNCTION \{schema\}\.(\w+)", text)}
    )
    names = ", ".join(f"'{name}'" for name in [*named, *_RETIRED])
    return _REPLACE.replace("{names}", names).replace("{schema}", schema) + "\n".join(files).replace(
        "{schema}", schema
    )


# They name each other in any order, so their bodies are read when they are first called.
_REPLACE = """
SET LOCAL check_function_bodies = off;

DO $$
DECLARE
    v_old regprocedure;
BEGIN
    FOR v_old IN
        SELECT oid FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace AND proname IN ({names})
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_old || ' CASCADE';
    END LOOP;
END
$$;

"""
