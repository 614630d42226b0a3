"""Redis restarts, is wiped, cuts off subscribers, freezes, is not there: the reader still gets the text."""

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.stream.stage import Turn, cut_subscribers, eventually, play, say, settings_for, words
from think_celery.core.address import Address
from think_celery.settings import Settings
from think_celery.stream.hub import Streams

PIECES = words(60)
TEXT = "".join(PIECES)


@pytest.mark.spec("T106")
def test_subscribers_that_are_cut_off_in_mid_stream_miss_nothing(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        readers, writer = [turn.read() for _ in range(3)], turn.writer()
        for piece in PIECES:
            await say(writer, [piece], pause=0.004)
            await cut_subscribers(streams)
        turn.row.settle(TEXT)
        await writer.end("completed")
        for notes in await asyncio.gather(*readers):
            assert (notes.text, notes.kinds) == (TEXT, ["chunk", "end"])
            assert notes.ids == [f"1-{seq}" for seq in range(1, 62)]

    play(settings, scene)


@pytest.mark.spec("T106")
@pytest.mark.parametrize("keeps", [True, False], ids=["with its data", "empty"])
def test_redis_restarts_in_mid_stream(own_valkey: Any, keeps: bool) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        await say(writer, PIECES[:20])
        await eventually(lambda: writer.waiting == 0)
        if not keeps:
            await streams.client.flushall()
        own_valkey.stop()
        await say(writer, PIECES[20:40])
        own_valkey.start()
        await say(writer, PIECES[40:])
        turn.row.settle(TEXT)
        await writer.end("completed")
        notes, late = await reader, await turn.read()
        assert notes.text == TEXT
        assert late.kinds == (["chunk", "end"] if keeps else ["gap", "chunk", "end"])
        assert late.text == TEXT if keeps else late.end.message is not None

    play(settings_for(f"redis://127.0.0.1:{own_valkey.port}/0"), scene)


@pytest.mark.usefixtures("impatient")
def test_with_redis_gone_for_good_the_ledger_ends_the_stream(own_valkey: Any) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        await say(writer, PIECES[:20])
        await eventually(lambda: writer.waiting == 0)
        own_valkey.stop()
        await say(writer, PIECES[20:])
        turn.row.settle(TEXT)
        await writer.end("completed")
        for notes in (await reader, await turn.read(), await turn.read("1-5")):
            assert (notes.text, notes.end.status) == (TEXT, "completed")

    play(settings_for(f"redis://127.0.0.1:{own_valkey.port}/0"), scene)


@pytest.mark.usefixtures("impatient")
def test_a_reader_starts_without_redis_and_follows_the_ledger(valkey: Any) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams, status="pending")
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 1)
        turn.row.settle(TEXT)
        notes = await asyncio.wait_for(reader, 4)
        assert (notes.text, notes.kinds) == (TEXT, ["chunk", "end"])
        await streams.publish_status(Address("TaskAgent", "a"), {})
        await streams.wake(turn.uid)
        await streams.finish(turn.uid, 1, status="completed")

    # Port 1 of this machine is nobody's.
    play(settings_for("redis://127.0.0.1:1/0"), scene)


def test_a_frozen_redis_does_not_hold_a_reader(own_valkey: Any) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        await say(writer, PIECES[:20])
        await eventually(lambda: writer.waiting == 0)
        os.kill(own_valkey._process.pid, signal.SIGSTOP)
        turn.row.settle(TEXT)
        late = turn.read()
        for notes in (await asyncio.wait_for(reader, 8), await asyncio.wait_for(late, 8)):
            assert (notes.text, notes.end.status) == (TEXT, "completed")

    play(settings_for(f"redis://127.0.0.1:{own_valkey.port}/0"), scene)
