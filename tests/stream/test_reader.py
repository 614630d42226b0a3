"""A reader is told every frame once and in order, whenever it comes, and always the end."""

import asyncio

import pytest

from tests.stream.stage import (
    PIECES,
    TEXT,
    Turn,
    another_process,
    delta,
    eventually,
    play,
    say,
    spoken,
    words,
)
from think_celery.core.frame import TurnView
from think_celery.errors import InvalidInput, LedgerUnavailable
from think_celery.settings import Settings
from think_celery.stream import reader as reader_module
from think_celery.stream.hub import Streams
from think_celery.stream.reader import read_turn


@pytest.mark.spec("T107")
def test_readers_that_join_at_any_moment_get_the_whole_text(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        writer = turn.writer()
        for piece in PIECES:
            turn.read()
            await writer.write(delta(piece))
            await asyncio.sleep(0.002)
        turn.row.settle(TEXT)
        await writer.end("completed", None, "m1")
        turn.read()
        for notes in await asyncio.gather(*turn.readers):
            assert notes.text == TEXT
            assert notes.ids == [f"1-{seq}" for seq in range(1, 42)]
            assert (notes.end.status, notes.end.message_id, notes.kinds) == (
                "completed",
                "m1",
                ["chunk", "end"],
            )

    play(settings, scene)


@pytest.mark.spec("T102")
def test_a_reader_may_come_before_the_turn(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams, status="pending")
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 0)
        turn.row.view = TurnView("running", 1)
        await spoken(turn)
        notes = await reader
        assert notes.text == TEXT
        assert [(event.kind, event.status) for event in notes.events[:2]] == [
            ("status", "pending"),
            ("status", "running"),
        ]

    play(settings, scene)


def test_reading_goes_on_after_any_cursor(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        await spoken(turn)
        for seen in range(1, 42):
            notes = await turn.read(after=f"1-{seen}")
            assert notes.text == "".join(PIECES[seen:])
            assert notes.kinds in (["chunk", "end"], ["end"])
            assert notes.end.status == "completed"

    play(settings, scene)


def test_a_reader_that_drops_and_comes_back_misses_nothing(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        speaking = asyncio.create_task(spoken(turn))
        text, cursor, ended = "", None, False
        async with another_process(settings) as other:
            for number in range(200):
                at = (streams, other)[number % 2]
                events = read_turn(at, uid=turn.uid, after=cursor, look=turn.row.look)
                heard = 0
                async for event in events:
                    cursor, ended = event.id or cursor, event.kind == "end"
                    text += event.chunk["delta"] if event.chunk else ""
                    heard += event.kind == "chunk"
                    if heard == 3:
                        break
                await events.aclose()
                if ended:
                    break
        await speaking
        assert (text, ended) == (TEXT, True)

    play(settings, scene)


@pytest.mark.parametrize("after", [None, "1-3", "1-40", "1-41", "2-7"])
@pytest.mark.parametrize("status", ["completed", "error", "aborted", "skipped"])
def test_without_a_log_the_ledger_tells_the_end(settings: Settings, after: str | None, status: str) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        turn.row.settle(TEXT, status, error="why")
        notes = await turn.read(after)
        assert notes.text == TEXT
        assert notes.kinds == (["reset"] if after else []) + ["chunk", "end"]
        assert (notes.end.status, notes.end.error, notes.end.message_id) == (status, "why", "m1")

    play(settings, scene)


@pytest.mark.spec("T99", "T100")
def test_a_failed_turn_replays_what_it_said_and_then_the_error(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        said, silent = Turn(streams), Turn(streams)
        await spoken(said, "error", error="the model broke")
        silent.row.view = TurnView("error", 1, "no key")
        await silent.writer().end("error", "no key")
        notes, other = await said.read(), await silent.read()
        assert (notes.text, notes.kinds, notes.end.error) == (TEXT, ["chunk", "end"], "the model broke")
        assert (other.kinds, other.end.error) == (["end"], "no key")

    play(settings, scene)


def test_a_lost_end_frame_is_made_good_from_the_ledger(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        await say(writer, PIECES[:10])
        await writer.close()
        turn.row.settle(TEXT)
        await streams.wake(turn.uid)
        notes = await reader
        assert (notes.text, notes.kinds) == (TEXT, ["chunk", "reset", "chunk", "end"])

    play(settings, scene)


def test_an_end_frame_that_comes_late_is_waited_for(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        await say(writer, PIECES)
        await eventually(lambda: writer.waiting == 0)
        turn.row.settle(TEXT)
        looks = turn.row.looks
        await streams.wake(turn.uid)
        await eventually(lambda: turn.row.looks > looks)
        await writer.end("completed")
        assert (await reader).kinds == ["chunk", "end"]

    play(settings, scene)


def test_the_log_may_vanish_under_a_reader(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader, writer = turn.read(), turn.writer()
        for number, piece in enumerate(PIECES):
            await say(writer, [piece], pause=0.003)
            if number % 10 == 5:
                await eventually(lambda: writer.waiting == 0)
                await streams.client.delete(turn.key)
        turn.row.settle(TEXT)
        await writer.end("completed")
        notes, late = await reader, await turn.read()
        assert (notes.text, notes.kinds) == (TEXT, ["chunk", "end"])
        assert late.kinds == ["gap", "chunk", "end"]
        assert late.end.message is not None
        assert late.end.message["parts"][0]["text"] == TEXT

    play(settings, scene)


def test_a_trimmed_log_is_a_gap_and_the_message_comes_with_the_end(settings: Settings) -> None:
    pieces = words(1000)

    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        writer = turn.writer()
        await say(writer, pieces)
        await eventually(lambda: writer.waiting == 0)
        reader, resumed = turn.read(), turn.read("1-3")
        await asyncio.sleep(0)
        turn.row.settle("".join(pieces))
        await writer.end("completed")
        for notes in (await reader, await resumed):
            assert notes.kinds == ["gap", "chunk", "end"]
            assert notes.end.message is not None
            assert notes.end.message["parts"][0]["text"] == "".join(pieces)
        again = await turn.read(notes.ids[-3])
        assert (again.kinds, again.end.message) == (["chunk", "end"], notes.end.message)

    play(settings.model_copy(update={"stream_max_frames": 100}), scene)


@pytest.mark.usefixtures("impatient")
def test_frames_that_were_never_published_are_found_in_the_log(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 0)
        for seq in range(1, 6):
            await streams.client.xadd(
                turn.key, {"c": f'{{"type":"text-delta","delta":"{seq}"}}'}, id=f"1-{seq}"
            )
        await eventually(lambda: bool(reader.done() or turn.row.looks > 1))
        await streams.client.xadd(turn.key, {"e": '{"status":"completed"}'}, id="1-6")
        assert (await reader).text == "12345"

    play(settings, scene)


def test_a_new_attempt_starts_the_message_afresh(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader = turn.read()
        await say(turn.writer(1), ["lost ", "words "], pause=0.01)
        await eventually(lambda: bool(len(turn.readers)))
        turn.row.view = TurnView("pending", 1)
        await streams.wake(turn.uid)
        second = turn.writer(2)
        await say(second, PIECES)
        turn.row.settle(TEXT, attempt=2)
        await second.end("completed")
        for notes in (await reader, await turn.read(), await turn.read("1-1")):
            assert notes.text == TEXT
            assert notes.kinds[-3:] == ["reset", "chunk", "end"]
        assert (await turn.read("2-1")).kinds == ["chunk", "end"]

    play(settings, scene)


@pytest.mark.parametrize("status", ["aborted", "skipped"])
def test_a_turn_that_never_started_ends_at_the_wake(settings: Settings, status: str) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams, status="pending")
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 0)
        turn.row.view = TurnView(status, 0, "no longer needed")
        began = asyncio.get_running_loop().time()
        await streams.wake(turn.uid)
        notes = await reader
        assert asyncio.get_running_loop().time() - began < 0.5
        assert (notes.kinds, notes.end.status, notes.end.error) == (["end"], status, "no longer needed")

    play(settings, scene)


def test_without_a_wake_the_end_is_noticed_within_seconds(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams, status="pending")
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 0)
        turn.row.view = TurnView("skipped", 0)
        assert (await asyncio.wait_for(reader, 4)).end.status == "skipped"

    play(settings, scene)


def test_a_deleted_submission_ends_with_a_gap(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 0)
        turn.row.view = None
        await streams.wake(turn.uid)
        notes = await reader
        assert (notes.kinds, notes.end.status) == (["gap", "end"], None)

    play(settings, scene)


def test_a_slow_reader_holds_up_nobody_and_misses_nothing(settings: Settings) -> None:
    pieces = [f"{number}:" + "x" * 20_000 for number in range(1500)]

    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        text, gate = [], asyncio.Event()

        async def dawdle() -> None:
            async for event in read_turn(streams, uid=turn.uid, after=None, look=turn.row.look):
                if event.chunk:
                    text.append(event.chunk["delta"])
                await gate.wait()

        slow, quick, writer = asyncio.create_task(dawdle()), turn.read(), turn.writer()
        await say(writer, pieces)
        await writer.end("completed")
        assert (await quick).text == "".join(pieces)
        assert len(text) <= 1
        gate.set()
        await slow
        assert text == pieces

    play(settings, scene)


def test_an_invalid_cursor_is_refused_at_the_call(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        with pytest.raises(InvalidInput, match="after"):
            read_turn(streams, uid=turn.uid, after="yesterday", look=turn.row.look)

    play(settings, scene)


@pytest.mark.usefixtures("impatient")
def test_a_ledger_that_is_away_for_a_moment_is_asked_again(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn, looks = Turn(streams), 0

        async def look() -> TurnView | None:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise LedgerUnavailable("restarting")
            return TurnView("aborted", 0)

        events = [event async for event in read_turn(streams, uid=turn.uid, after=None, look=look)]
        assert [event.status for event in events] == ["aborted"]

    play(settings, scene)


def test_with_nobody_to_ask_the_reader_says_so(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_LEDGER_PATIENCE_SECONDS", 0.0)

    async def scene(streams: Streams) -> None:
        async def look() -> TurnView | None:
            raise LedgerUnavailable("gone")

        with pytest.raises(LedgerUnavailable, match="gone"):
            _ = [event async for event in read_turn(streams, uid=Turn(streams).uid, after=None, look=look)]

    play(settings, scene)
