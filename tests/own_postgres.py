"""A PostgreSQL that a test may crash."""

import signal
from pathlib import Path

from think_celery.dev import program
from think_celery.dev.home import Home
from think_celery.dev.postgres import Postgres
from think_celery.dev.servers import bring_up


class Server:
    """A PostgreSQL that a test may crash: it is that test's alone."""

    def __init__(self, folder: Path) -> None:
        home = Home(folder.resolve())
        home.create()
        self._server = Postgres(home, print)
        self.start()

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        self._program, self._process = bring_up(self._server)

    def crash(self) -> None:
        """Stop in immediate mode: no checkpoint, everybody is cut off."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(20)

    def stop(self) -> None:
        program.stop(self._process, self._program)
        self._server.clean()
