"""Makefile, lock files and the script that makes .venv: what a new machine meets first."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("dev", "runtime", "build", "lock")


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    return dict(re.findall(r"(?m)^([a-z0-9][a-z0-9._-]*)==(\S+)", text))


def wanted(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=;~! ]", requirement, maxsplit=1)[0].lower() for requirement in requirements}
    return {name for name in names if name != "think-celery"}


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_have_hashes_and_name_no_index(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*(-i|-f|--(index|extra-index|find-links|trusted|no-index))", text)
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert all(re.match(r"[a-z0-9._-]+==\S+|    --hash=sha256:[0-9a-f]{64}( \\)?$", line) for line in lines)
    for start, following in pairwise(lines):
        if not start.startswith(" "):
            assert "--hash" in following, start


def test_the_locks_hold_what_the_project_asks_for() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    needed = wanted(PROJECT["project"]["dependencies"])
    assert needed <= set(pins("runtime"))
    assert needed | wanted(extras["dev"] + extras["embedded"]) <= set(pins("dev"))
    assert wanted(PROJECT["build-system"]["requires"]) <= set(pins("dev")) & set(pins("build"))


def test_the_locks_agree() -> None:
    dev = pins("dev")
    for lock in ("runtime", "build"):
        assert {name: dev[name] for name in pins(lock) if name in dev} == {
            name: version for name, version in pins(lock).items() if name in dev
        }


def test_nothing_needs_celery_without_its_redis_extra() -> None:
    assert any(item.startswith("celery[redis]") for item in PROJECT["project"]["dependencies"])
    assert "packaging" in pins("runtime")


def make(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_make_alone_lists_the_targets() -> None:
    shown = make()
    assert shown.returncode == 0, shown.stderr
    named = re.findall(r"(?m)^make (\w+) +\S", shown.stdout)
    assert named == ["help", "demo", "up", "test", "check", "bench", "fmt", "venv", "lock", "clean"]
    phony = re.search(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text())
    assert phony
    assert set(phony[1].split()) == set(named)


def test_make_test_ends_with_pytest() -> None:
    last = make("--dry-run", "test").stdout.splitlines()[-1]
    assert "-m pytest" in last
    assert "--doctest-modules" not in last


def fake_python(folder: Path, *, version: str, modules: bool) -> Path:
    """Write an executable that answers the questions of venv.sh like a Python of that kind."""
    program = folder / "python3"
    old = version < "3.11"
    program.write_text(
        f"""#!/bin/sh
        case "$*" in
            *ensurepip*) exit {0 if modules else 1} ;;
            *"%d.%d"*) echo {version} ;;
            *version_info*) exit {1 if old else 0} ;;
            --version) echo Python {version}.1 ;;
            *) echo unexpected: "$*" >&2; exit 70 ;;
        esac
        """
    )
    program.chmod(0o755)
    return program


def set_up(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run venv.sh in an otherwise empty folder."""
    script = tmp_path / "requirements" / "venv.sh"
    script.parent.mkdir()
    script.write_text((ROOT / "requirements" / "venv.sh").read_text())
    return subprocess.run(["sh", script], env=env, capture_output=True, text=True, timeout=60)


def test_an_old_python_is_named_with_the_remedy(tmp_path: Path) -> None:
    python = fake_python(tmp_path, version="3.09", modules=True)
    done = set_up(tmp_path, PATH=os.environ["PATH"], PYTHON=str(python))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed, found: Python 3.09.1" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_no_python_at_all_is_said_so(tmp_path: Path) -> None:
    done = set_up(tmp_path, PATH=os.environ["PATH"], PYTHON=str(tmp_path / "absent"))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr


def test_a_python_without_venv_is_told_the_debian_package(tmp_path: Path) -> None:
    python = fake_python(tmp_path, version="3.12", modules=False)
    done = set_up(tmp_path, PATH=os.environ["PATH"], PYTHON=str(python))
    assert done.returncode == 1
    assert "(Python 3.12) comes without the venv and ensurepip modules" in done.stderr
    assert "apt-get install python3.12-venv" in done.stderr


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert script.rstrip().endswith("exec make test")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_wheel_holds_the_package_and_the_deployment_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"beat_schedule.py", "workers/__init__.py", "think_celery/py.typed"} <= set(names)
    tops = {name.partition("/")[0] for name in names}
    version = PROJECT["project"]["version"]
    assert tops == {"think_celery", "workers", "beat_schedule.py", f"think_celery-{version}.dist-info"}
    assert any(re.fullmatch(r"think_celery/ledger/migrations/versions/\w+\.sql", name) for name in names)
