"""What stream tests stand on: settings, a ledger row, a reader's notes, a wire that can be cut."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

from think_celery.core.frame import StreamEvent, TurnView
from think_celery.settings import Settings, load_settings
from think_celery.stream.connection import read_entries
from think_celery.stream.hub import Streams
from think_celery.stream.reader import read_turn
from think_celery.stream.writer import TurnWriter

DEADLINE = 20.0


def settings_for(url: str, **changes: Any) -> Settings:
    """Settings for a Redis; a short prefix, a short flush, and a database that no test here touches."""
    values = {"redis_prefix": "t", "stream_flush_ms": 5, "redis_timeout": 1.0, **changes}
    return load_settings(
        {}, folder=Path("/"), database_url="postgresql://nobody@127.0.0.1/none", redis_url=url, **values
    )


def play(settings: Settings, scene: Callable[[Streams], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with streams of its own, under a deadline."""

    async def main() -> None:
        streams = Streams(settings, asyncio.get_running_loop())
        try:
            async with asyncio.timeout(DEADLINE):
                await scene(streams)
        finally:
            await streams.aclose()

    asyncio.run(main())


async def eventually(
    true: Callable[[], bool] | Callable[[], Awaitable[bool]], *, within: float = 5.0
) -> None:
    """Wait until something holds, looking often."""
    async with asyncio.timeout(within):
        while True:
            answer = true()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


class Row:
    """A submission as the ledger would show it."""

    def __init__(self, status: str = "running", attempt: int = 1) -> None:
        self.view: TurnView | None = TurnView(status, attempt)
        self.looks = 0

    async def look(self) -> TurnView | None:
        self.looks += 1
        return self.view

    def settle(
        self, text: str, status: str = "completed", *, attempt: int = 1, error: str | None = None
    ) -> None:
        self.view = TurnView(status, attempt, error, "m1", answer(text))


class Notes:
    """What one reader was told."""

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []

    @property
    def text(self) -> str:
        """The answer as a client would show it."""
        text = ""
        for event in self.events:
            if event.kind == "reset":
                text = ""
            elif event.chunk and event.chunk["type"] == "text-delta":
                text += event.chunk["delta"]
        return text

    @property
    def kinds(self) -> list[str]:
        """Kinds in order, runs of equal ones once, without status."""
        kinds = [event.kind for event in self.events if event.kind != "status"]
        return [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]]

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events if event.id is not None]

    @property
    def end(self) -> StreamEvent:
        assert self.events[-1].kind == "end", self.kinds
        return self.events[-1]


class Turn:
    """One turn on the stage: its row, its writer, its readers."""

    def __init__(self, streams: Streams, *, status: str = "running") -> None:
        self.streams = streams
        self.uid: UUID = uuid4()
        self.row = Row(status)
        self.readers: list[asyncio.Task[Notes]] = []

    @property
    def key(self) -> str:
        return f"{self.streams.settings.redis_prefix}:turn:{self.uid}:log"

    def writer(self, attempt: int = 1) -> TurnWriter:
        return self.streams.writer(self.uid, attempt)

    def read(
        self, after: str | None = None, *, streams: Streams | None = None, notes: Notes | None = None
    ) -> "asyncio.Task[Notes]":
        """Begin to read in a task of its own."""
        notes = notes or Notes()

        async def reading() -> Notes:
            at = streams or self.streams
            async for event in read_turn(at, uid=self.uid, after=after, look=self.row.look):
                notes.events.append(event)
            return notes

        task = asyncio.create_task(reading())
        self.readers.append(task)
        return task

    async def log_ids(self, streams: Streams | None = None) -> list[str]:
        entries = await read_entries((streams or self.streams).client, "XRANGE", self.key, "-", "+")
        return [entry_id.decode() for entry_id, _ in entries]


async def cut_subscribers(streams: Streams) -> None:
    """Have the server drop every pub/sub connection."""
    execute: Any = streams.client.execute_command
    await execute("CLIENT", "KILL", "TYPE", "pubsub")


def delta(text: str) -> dict[str, Any]:
    return {"type": "text-delta", "id": "0", "delta": text}


def words(count: int) -> list[str]:
    """Pieces of text that differ, with characters of one to four bytes."""
    return [f"{number} é€😀 " for number in range(count)]


def answer(text: str) -> dict[str, Any]:
    return {"id": "m1", "role": "assistant", "parts": [{"type": "text", "text": text, "state": "done"}]}


async def say(writer: TurnWriter, pieces: list[str], *, pause: float = 0.0) -> None:
    """Write pieces as a model would: the loop runs between them."""
    for piece in pieces:
        await writer.write(delta(piece))
        await asyncio.sleep(pause)


PIECES = words(40)
TEXT = "".join(PIECES)


async def spoken(turn: Turn, status: str = "completed", *, error: str | None = None) -> None:
    """A whole turn, settled in the ledger first, as the engine does it."""
    writer = turn.writer()
    await say(writer, PIECES)
    turn.row.settle(TEXT, status, error=error)
    await writer.end(status, error, "m1")


class Wire:
    """A TCP proxy in front of a server that can be cut, or can swallow replies (an ambiguous outcome)."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.swallow = False
        """True: what the server answers is thrown away, and the connection is cut instead."""
        self.swallowed = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, back=False)),
            asyncio.create_task(self._pump(far_reader, writer, back=True)),
        ]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        writer.close()
        far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        while data := await reader.read(65536):
            if back and self.swallow:
                self.swallowed += 1
                return
            writer.write(data)
            await writer.drain()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()


@asynccontextmanager
async def another_process(settings: Settings) -> AsyncIterator[Streams]:
    """Streams with connections of their own, as a second process would have."""
    streams = Streams(settings, asyncio.get_running_loop())
    try:
        yield streams
    finally:
        await streams.aclose()
