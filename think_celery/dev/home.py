"""The data folder of a local stack: where everything lies, and the lock that tells whether a stack runs."""

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EPERM
from pathlib import Path

from think_celery.errors import InvalidSettings

HOME_NAME = ".think-celery"
HOME_VARIABLE = "THINK_HOME"
_PATIENCE = threading.Event()  # never set: a wait with a deadline


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder of one stack.

    Args:
        folder: Absolute path; need not exist yet.
    """

    folder: Path

    @property
    def state_file(self) -> Path:
        """How to reach the running stack; see `dev.state`."""
        return self.folder / "stack.json"

    @property
    def lock_file(self) -> Path:
        """Locked as long as a supervisor lives; holds its process id."""
        return self.folder / "lock"

    @property
    def postgres(self) -> Path:
        """PostgreSQL's data directory."""
        return self.folder / "postgres"

    @property
    def valkey(self) -> Path:
        """Valkey's directory: configuration and append-only file."""
        return self.folder / "valkey"

    @property
    def beat(self) -> Path:
        """Directory of beat's state file."""
        return self.folder / "beat"

    @property
    def logs(self) -> Path:
        """Directory of the servers' logs."""
        return self.folder / "logs"

    def create(self) -> None:
        """Make the folder, for its owner only.

        Raises:
            InvalidSettings: It cannot be made or belongs to somebody else; the text names the remedy.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
            if status.st_uid != os.geteuid():
                raise PermissionError(
                    EPERM, f"it belongs to user {status.st_uid}; start the stack as that user"
                )
            if (mode := status.st_mode) & 0o066:
                self.folder.chmod(mode & 0o711)
            for part in (self.beat, self.logs):
                part.mkdir(mode=0o700, exist_ok=True)
            ignore = self.folder / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise InvalidSettings(
                f"the data folder {self.folder} cannot be used ({error.strerror}), "
                f"or name another one with --home or {HOME_VARIABLE}"
            ) from error


def home_here(option: Path | None = None, environ: Mapping[str, str] | None = None) -> Home:
    """Return the folder for a stack to be started: the option, THINK_HOME, or `.think-celery` right here."""
    named = option or _from_environ(environ)
    return Home(_absolute(named or Path(HOME_NAME)))


def home_nearby(option: Path | None = None, environ: Mapping[str, str] | None = None) -> Home:
    """Return the data folder to look at: as `home_here`, but a stack of a parent folder is found as well."""
    named = option or _from_environ(environ)
    if named is None:
        here = Path.cwd()
        for place in (here, *here.parents):
            if (place / HOME_NAME / "stack.json").is_file() or (place / HOME_NAME / "lock").is_file():
                return Home(place / HOME_NAME)
    return Home(_absolute(named or Path(HOME_NAME)))


def _from_environ(environ: Mapping[str, str] | None) -> Path | None:
    named = (os.environ if environ is None else environ).get(HOME_VARIABLE, "")
    return Path(named) if named else None


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()


@contextmanager
def locked(home: Home) -> Iterator[bool]:
    """Hold the stack's lock for the life of this process; the kernel frees it, however the process ends.

    Yields:
        False when another process holds it.
    """
    descriptor = os.open(home.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _take(descriptor):
            yield False
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield True
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    for _ in range(10):  # `holder` of another command may hold it for a moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _PATIENCE.wait(0.03)
        else:
            return True
    return False


def holder(home: Home) -> int | None:
    """Return the process id of the living supervisor, or None when no stack runs in this folder."""
    try:
        descriptor = os.open(home.lock_file, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(ValueError):
            return int(os.pread(descriptor, 32, 0))
        return None
    finally:
        os.close(descriptor)
    return None
