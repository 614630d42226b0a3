"""Which agent modules a local stack serves when nobody named any."""

from collections.abc import Mapping
from pathlib import Path

DEMO_AGENTS = "think_celery.dev.demo_agents"
AGENTS_FILE = "agents.py"


def choose_agents(environ: Mapping[str, str], folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the agent modules to serve, and a word on why these.

    THINK_AGENTS decides; else an `agents.py` here that uses think-celery; else the demonstration agents.
    """
    named = tuple(part.strip() for part in environ.get("THINK_AGENTS", "").split(",") if part.strip())
    if named:
        return named, "named by THINK_AGENTS"
    file = folder / AGENTS_FILE
    if file.is_file() and "think_celery" in file.read_text(errors="replace"):
        return (file.stem,), f"{AGENTS_FILE} in this folder"
    if file.is_file():
        return (
            DEMO_AGENTS,
        ), f"offline demonstration; {file.name} here does not use think_celery, so it is left out"
    return (DEMO_AGENTS,), "offline demonstration; `think-celery init` writes an agents.py of your own"
