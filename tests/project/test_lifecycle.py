"""docs/lifecycle.md says what the table says."""

import subprocess
import sys
from pathlib import Path

from think_celery.core.submission import TERMINAL, TRANSITIONS, Status

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "lifecycle.py"
PAGE = SCRIPT.with_suffix(".md")


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_the_page_is_up_to_date_and_a_stale_one_is_noticed(tmp_path: Path) -> None:
    assert run(SCRIPT, "--check").returncode == 0
    copy = tmp_path / "lifecycle.py"
    copy.write_text(SCRIPT.read_text())
    copy.with_suffix(".md").write_text(PAGE.read_text().replace("pending", "waiting"))
    stale = run(copy, "--check")
    assert stale.returncode == 1
    assert "is stale; run: .venv/bin/python docs/lifecycle.py" in stale.stdout
    assert run(copy).returncode == 0
    assert copy.with_suffix(".md").read_text() == PAGE.read_text()


def test_every_step_and_every_status_is_on_the_page() -> None:
    text = PAGE.read_text()
    for (source, event), target in TRANSITIONS.items():
        assert f"    {source} --> {target}: {event}\n" in text
        assert f"| `{source}` | {event} | `{target}` |" in text
    assert text.count(" --> ") == len(TRANSITIONS) + 1 + len(TERMINAL)
    for status in Status:
        assert f"| `{status}` | {'yes' if status in TERMINAL else 'no'} |" in text
