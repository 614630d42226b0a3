"""The application's own processes in the local stack: worker, beat and Flower, and what they are told."""

import fcntl
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from think_celery.dev.home import Home
from think_celery.dev.program import MARK, Program, write_private
from think_celery.dev.servers import Addresses
from think_celery.dev.valkey import HOST, free_port
from think_celery.errors import InvalidSettings
from think_celery.settings import Settings

_FLOWER_PORT = 5555
_reservations: list[int] = []
_FLOWER_OPTIONS = {
    "address": HOST,
    "read_only": "True",
    "max_tasks": "5000",  # it keeps every task in memory
    "max_workers": "100",
    "purge_offline_workers": "60",
    "persistent": "False",  # the history is in the ledger
    "conf": os.devnull,  # a flowerconfig.py of the project could open it up
}


@dataclass(frozen=True, slots=True)
class Flower:
    """How to reach Flower."""

    url: str
    user: str
    password: str
    port: int


def prepare_flower(home: Home, environ: Mapping[str, str]) -> Flower:
    """Choose Flower's port and its user; the password is made once and kept in the data folder.

    Raises:
        InvalidSettings: THINK_FLOWER_PORT is no port.
    """
    password_file = home.folder / "flower.password"
    if not password_file.is_file():
        write_private(password_file, secrets.token_urlsafe(12))
    wanted = _flower_port(environ)
    port = (_reserved(wanted) and free_port(wanted)) or free_port(0)
    return Flower(
        url=f"http://{HOST}:{port}",
        user=environ.get("THINK_FLOWER_USER") or "think",
        password=environ.get("THINK_FLOWER_PASSWORD") or password_file.read_text().strip(),
        port=port,
    )


def _reserved(port: int) -> bool:
    """Keep other local stacks of this user off a port that Flower will open only in some seconds."""
    file = Path(tempfile.gettempdir()) / f"think-celery-flower-{os.getuid()}-{port}.lock"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _reservations.append(descriptor)  # until this process ends
    return True


def _flower_port(environ: Mapping[str, str]) -> int:
    text = environ.get("THINK_FLOWER_PORT") or str(_FLOWER_PORT)
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65_536:
        raise InvalidSettings(f"THINK_FLOWER_PORT: {text!r} is no port; name a number from 1 to 65535")
    return int(text)


def child_environ(
    home: Home, servers: Addresses, agents: tuple[str, ...], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of worker, beat and Flower: the caller's, and where everything is."""
    # FLOWER_UNAUTHENTICATED_API and its like must not come in from the caller's shell.
    kept = {name: value for name, value in environ.items() if not name.startswith("FLOWER_")}
    return {
        **kept,
        "THINK_DATABASE_URL": servers.database_url,
        "THINK_REDIS_URL": servers.redis_url,
        "THINK_BROKER_URL": servers.broker_url,
        "THINK_AGENTS": ",".join(agents),
        "PYTHONUNBUFFERED": "1",
        **_without_root_warning(environ),
        MARK: str(home.folder),
    }


def worker(settings: Settings, folder: Path, environ: Mapping[str, str]) -> Program:
    """Return the worker; pool and concurrency are in the Celery app, taken from the settings."""
    command = _celery("worker", f"--loglevel={settings.log_level}")
    # TERM is a warm shutdown (turns may finish), QUIT a cold one; the sweeper takes up what was cut off.
    stop = ((signal.SIGTERM, 10.0), (signal.SIGQUIT, 3.0))
    return Program(name="worker", command=command, folder=folder, environ=environ, stop=stop)


def beat(settings: Settings, home: Home, folder: Path, environ: Mapping[str, str]) -> Program:
    """Return beat, with its state file in the data folder."""
    schedule = home.beat / "celerybeat-schedule"
    command = _celery("beat", f"--loglevel={settings.log_level}", f"--schedule={schedule}", "--pidfile=")
    return Program(
        name="beat", command=command, folder=folder, environ=environ, stop=((signal.SIGTERM, 5.0),)
    )


def flower(chosen: Flower, folder: Path, environ: Mapping[str, str]) -> Program:
    """Return Flower: loopback, password, read-only, bounded; the password is not on the command line."""
    options = {**_FLOWER_OPTIONS, "port": str(chosen.port)}
    command = _celery("flower", *(f"--{name}={value}" for name, value in options.items()))
    secret = {**environ, "FLOWER_BASIC_AUTH": f"{chosen.user}:{chosen.password}"}
    return Program(
        name="flower", command=command, folder=folder, environ=secret, stop=((signal.SIGTERM, 5.0),)
    )


def _without_root_warning(environ: Mapping[str, str]) -> dict[str, str]:
    """Celery warns at length that root runs a worker; for a local stack the user has decided that."""
    if os.geteuid() != 0:
        return {}
    ours = "ignore:You're running the worker with superuser privileges"
    return {"PYTHONWARNINGS": ",".join(part for part in (environ.get("PYTHONWARNINGS"), ours) if part)}


def _celery(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "celery", "--quiet", "-A", "workers", *arguments)
