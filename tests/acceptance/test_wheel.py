"""The built wheel alone, in an empty folder with a ten-line agents file, does the main job."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.processes import ROOT

AGENTS = """\
from think_celery import Think
from think_celery.testing import scripted_model


class Greeter(Think):
    def get_model(self):
        return scripted_model(lambda text: f"Good morning, you said {text}.")
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A Python that has the wheel, and the locked packages, but nothing of this repository."""
    with TemporaryDirectory(prefix="tw-") as name:
        folder = Path(name)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        venv.create(folder / "env", with_pip=False)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = folder / "env" / "lib" / version / "site-packages"
        zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(site)
        # A path line gives the packages without running the line that makes this repository importable.
        (site / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n")
        yield folder / "env" / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str) -> str:
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("THINK_", "PYTHON"))}
    done = subprocess.run(
        [python, "-m", "think_celery.cli", *arguments],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(200)
def test_up_submit_wait_down(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with TemporaryDirectory(prefix="te-") as name:
        folder = Path(name)
        (folder / "agents.py").write_text(AGENTS)
        where = "import think_celery, workers; print(think_celery.__file__, workers.__name__)"
        try:
            run(installed, folder, "up", "--detach")
            found = subprocess.run(
                [installed, "-c", where], cwd=folder, capture_output=True, text=True, check=True
            ).stdout
            assert str(ROOT) not in found
            assert "Good morning, you said hello." in run(
                installed, folder, "submit", "Greeter/ann", "hello", "--wait", "--timeout", "30"
            )
            assert "Greeter" in run(installed, folder, "status")
            assert "completed" in run(installed, folder, "list", "Greeter/ann")
        finally:
            run(installed, folder, "down")
