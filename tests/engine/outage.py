"""A way to PostgreSQL that a test can cut and mend."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from think_celery.engine.loop import LoopThread


class Line:
    """Hands on what is said between this process and the server, until it is cut.

    Args:
        database_url: Of the server, which listens on a socket in a folder.
    """

    def __init__(self, database_url: str) -> None:
        self._given = urlsplit(database_url)
        self._target = parse_qs(self._given.query)["host"][0] + "/.s.PGSQL.5432"
        self._loop = LoopThread("test-line")
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self.mend()

    @property
    def url(self) -> str:
        """The same database, over this line."""
        netloc = f"{self._given.netloc.partition('@')[0]}@127.0.0.1:{self._port}"
        return self._given._replace(netloc=netloc, query="").geturl()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nobody gets through during the block."""
        self._loop.run(self._cut())
        try:
            yield
        finally:
            self.mend()

    def mend(self) -> None:
        self._loop.run(self._listen())

    def close(self) -> None:
        self._loop.close(self._cut())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        self._writers.add(far_writer)
        if writer.is_closing():  # cut meanwhile
            far_writer.transport.abort()
        with suppress(OSError):
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._writers -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
