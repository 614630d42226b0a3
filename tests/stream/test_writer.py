"""The writer: what is in the log, when it is sent, and that Redis' troubles never reach the turn."""

import asyncio
import os
import signal
from typing import Any
from uuid import uuid4

import pytest

from tests.stream.stage import Turn, Wire, another_process, delta, eventually, play, say, settings_for, words
from think_celery.core.frame import decode_batch
from think_celery.core.routing import turn_channel
from think_celery.errors import InvalidInput
from think_celery.settings import Settings
from think_celery.stream import writer as writer_module
from think_celery.stream.hub import LOOK, Streams


def test_frames_are_numbered_logged_and_published_in_batches(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        async with streams.subscribe(turn_channel("t", turn.uid)) as heard:
            assert await heard.get(2) == LOOK
            writer = turn.writer(attempt=3)
            await writer.write({"type": "start"})
            await writer.write({"type": "start-step"})
            await writer.end("completed", None, "m1")
            batches = [decode_batch(await heard.get(2) or b"")]
            while batches[-1][-1].kind != "e":
                batches.append(decode_batch(await heard.get(2) or b""))
        assert [str(frame.at) for batch in batches for frame in batch] == ["3-1", "3-2", "3-3"]
        assert len(batches) == 1
        assert await turn.log_ids() == ["3-1", "3-2", "3-3"]
        assert batches[-1][-1].data == {"status": "completed", "error": None, "messageId": "m1"}

    play(settings.model_copy(update={"stream_flush_ms": 500}), scene)


@pytest.mark.parametrize(
    "kind", ["text-delta", "reasoning-delta", "tool-input-available", "tool-output-available"]
)
def test_what_a_person_waits_for_is_sent_at_once(settings: Settings, kind: str) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        async with streams.subscribe(turn_channel("t", turn.uid)) as heard:
            assert await heard.get(2) == LOOK
            writer = turn.writer()
            await writer.write({"type": "start"})
            await writer.write({"type": kind})
            batch = await heard.get(0.2)
            assert batch is not None
            assert len(decode_batch(batch)) == 2
            await writer.write({"type": "finish"})
            assert await heard.get(0.1) is None
            assert await heard.get(2) is not None

    play(settings.model_copy(update={"stream_flush_ms": 400}), scene)


def test_a_model_that_speaks_slowly_is_heard_at_once(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        async with streams.subscribe(turn_channel("t", turn.uid)) as heard:
            assert await heard.get(2) == LOOK
            writer = turn.writer()
            for _ in range(3):
                await writer.write(delta("a word "))
                assert await heard.get(0.1) is not None
                await writer.write(delta("a quick one "))
                assert await heard.get(0.1) is None
                assert await heard.get(1) is not None
                assert await heard.get(0.3) is None

    play(settings.model_copy(update={"stream_flush_ms": 250}), scene)


def test_the_log_lives_long_while_running_and_shortly_after(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        writer = turn.writer()
        await say(writer, words(3))
        await eventually(lambda: writer.waiting == 0)
        assert await streams.client.ttl(turn.key) > 3600
        await writer.end("completed")
        assert 590 < await streams.client.ttl(turn.key) <= settings.stream_keep_seconds

    play(settings, scene)


def test_the_log_is_capped(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        writer = turn.writer()
        await say(writer, words(1500))
        await writer.end("completed")
        ids = await turn.log_ids()
        assert 200 <= len(ids) < 500
        assert ids[-1] == "1-1501"

    play(settings.model_copy(update={"stream_max_frames": 200}), scene)


def test_a_producer_that_never_waits_is_held_back_but_loses_nothing(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        writer = turn.writer()
        most = 0
        for piece in words(4000):
            await writer.write(delta(piece))
            most = max(most, writer.waiting)
        await writer.end("completed")
        assert len(await turn.log_ids()) == 4001
        assert most <= 2 * writer_module._ROOM_FRAMES

    play(settings, scene)


def test_hostile_chunks_are_cleaned_not_raised(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        cycle: dict[str, Any] = {"type": "data-x"}
        cycle["data"] = cycle
        for chunk in (delta("\ud83d"), delta("a\x00b"), {"type": "data-x", "data": {1, float("inf")}}, cycle):
            await writer.write(chunk)
        await writer.end("completed")
        assert (await reader).text == "�a\x00b"

    play(settings, scene)


def test_a_chunk_may_be_changed_after_it_was_written(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer, chunk = turn.read(), turn.writer(), delta("one")
        await writer.write(chunk)
        chunk["delta"] = "two"
        await writer.end("completed")
        assert (await reader).text == "one"

    play(settings, scene)


def test_a_retried_append_shows_no_frame_twice(valkey: Any) -> None:
    """The server did the work and its reply was lost: the same ids come again and are refused."""

    async def main() -> None:
        async with Wire(valkey.port) as wire:
            streams = Streams(settings_for(wire.url, redis_timeout=0.5), asyncio.get_running_loop())
            near = Streams(settings_for(f"redis://127.0.0.1:{valkey.port}/0"), asyncio.get_running_loop())
            turn = Turn(streams)
            reader = turn.read(streams=near)
            writer, pieces = turn.writer(), words(60)
            await say(writer, pieces[:20])
            await eventually(lambda: writer.waiting == 0)
            wire.swallow = True
            await say(writer, pieces[20:40])
            await eventually(lambda: wire.swallowed > 0)
            wire.swallow = False
            await say(writer, pieces[40:])
            await writer.end("completed")
            await eventually(lambda: writer.waiting == 0)
            notes = await reader
            assert notes.text == "".join(pieces)
            assert notes.ids == await turn.log_ids(near) == [f"1-{seq}" for seq in range(1, 62)]
            await streams.aclose()
            await near.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_frames_wait_in_memory_while_redis_is_away(valkey: Any) -> None:
    async def main() -> None:
        async with Wire(valkey.port) as wire:
            streams = Streams(settings_for(wire.url), asyncio.get_running_loop())
            turn, pieces = Turn(streams), words(300)
            reader, writer = turn.read(), turn.writer()
            await say(writer, pieces[:10])
            await eventually(lambda: writer.waiting == 0)
            await wire.down()
            await say(writer, pieces[10:])
            await eventually(lambda: writer.waiting >= 290)
            await wire.up()
            await writer.end("completed")
            notes = await reader
            assert notes.text == "".join(pieces)
            assert notes.kinds == ["chunk", "end"]
            await streams.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_beyond_its_memory_a_gap_frame_tells_the_readers(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "KEEP_BYTES", 20_000)

    async def main() -> None:
        async with Wire(valkey.port) as wire:
            streams = Streams(settings_for(wire.url), asyncio.get_running_loop())
            turn, pieces = Turn(streams), words(1000)
            reader, writer = turn.read(), turn.writer()
            await say(writer, pieces[:10])
            await eventually(lambda: writer.waiting == 0)
            await wire.down()
            await say(writer, pieces[10:990])
            assert writer.waiting < 900
            await wire.up()
            await eventually(lambda: writer.waiting == 0)
            await say(writer, pieces[990:])
            turn.row.settle("".join(pieces))
            await writer.end("completed")
            for notes in (await reader, await turn.read()):
                assert notes.kinds == ["chunk", "gap", "chunk", "end"]
                assert notes.end.message is not None
                assert notes.end.message["parts"][0]["text"] == "".join(pieces)
            await streams.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_frozen_redis_does_not_hold_the_turn(own_valkey: Any) -> None:
    async def scene(streams: Streams) -> None:
        turn, loop = Turn(streams), asyncio.get_running_loop()
        writer, pieces = turn.writer(), words(50)
        await say(writer, pieces[:10])
        await eventually(lambda: writer.waiting == 0)
        os.kill(own_valkey._process.pid, signal.SIGSTOP)
        began = loop.time()
        await say(writer, pieces[10:])
        assert loop.time() - began < 0.3
        await writer.end("completed")
        assert loop.time() - began < 1.5
        os.kill(own_valkey._process.pid, signal.SIGCONT)
        await eventually(lambda: writer.waiting == 0)
        assert len(await turn.log_ids()) == 51

    play(settings_for(f"redis://127.0.0.1:{own_valkey.port}/0"), scene)


@pytest.mark.spec("T144")
def test_a_writer_of_an_older_attempt_falls_silent(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader = turn.read()
        old, new = turn.writer(1), turn.writer(2)
        await say(old, ["old "])
        await eventually(lambda: old.waiting == 0)
        await say(new, ["new "])
        await eventually(lambda: new.waiting == 0)
        await say(old, ["stale "] * 3)
        await eventually(lambda: old.waiting == 0)
        await old.end("error", "never seen")
        await say(new, ["answer"])
        await new.end("completed")
        notes = await reader
        assert (notes.text, notes.end.status) == ("new answer", "completed")
        assert await turn.log_ids() == ["1-1", "2-1", "2-2", "2-3"]

    play(settings, scene)


def test_the_end_of_a_lost_writer_can_be_written_by_another(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, lost = turn.read(), turn.writer()
        await say(lost, ["half "])
        await eventually(lambda: lost.waiting == 0)
        await streams.finish(turn.uid, 1, status="error", error="the worker died", message_id="m1")
        notes = await reader
        assert (notes.text, notes.end.status, notes.end.error) == ("half ", "error", "the worker died")
        assert notes.ids == ["1-1", "1-2"]
        await streams.finish(turn.uid, 1, status="completed")
        assert await turn.log_ids() == ["1-1", "1-2"]

    play(settings, scene)


def test_closing_leaves_the_turn_open(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        writer = turn.writer()
        await say(writer, ["one "])
        await writer.close()
        await writer.write(delta("too late"))
        await writer.end("completed")
        assert await turn.log_ids() == ["1-1"]
        again = turn.writer(2)
        await say(again, ["all"])
        await again.end("completed")
        assert (await turn.read()).text == "all"

    play(settings, scene)


def test_closing_the_streams_lets_out_what_waits(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        ending, speaking = Turn(streams), Turn(streams)
        writer, other = ending.writer(), speaking.writer()
        await say(other, ["half"])
        await other.write({"type": "text-end"})
        await writer.write({"type": "start"})
        end = asyncio.create_task(writer.end("completed"))
        await asyncio.sleep(0)
        await streams.aclose()
        await end
        async with another_process(settings) as after:
            assert await ending.log_ids(after) == ["1-1", "1-2"]
            assert await speaking.log_ids(after) == ["1-1", "1-2"]

    play(settings, scene)


def test_attempts_are_counted_from_one(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        with pytest.raises(InvalidInput, match="attempt"):
            streams.writer(uuid4(), 0)

    play(settings, scene)
