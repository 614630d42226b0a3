"""The hub: one connection for all readers of a process, which come, go and are cancelled."""

import asyncio

import pytest

from tests.stream.stage import TEXT, Turn, cut_subscribers, eventually, play, spoken
from think_celery.core.address import Address
from think_celery.core.routing import agent_channel, turn_channel
from think_celery.errors import StreamUnavailable, WrongContext
from think_celery.settings import Settings
from think_celery.stream.hub import LOOK, Streams


def test_all_readers_share_one_connection_and_leave_nothing_behind(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn, other = Turn(streams), Turn(streams)
        channel = turn_channel("t", turn.uid)
        for _ in range(20):
            turn.read()
        other.read()
        client = streams.client

        async def subscribed(count: int) -> bool:
            return dict(await client.pubsub_numsub(channel))[channel.encode()] == count

        await eventually(lambda: subscribed(1))
        assert len(await client.client_list(_type="pubsub")) == 1
        for reader in turn.readers:
            reader.cancel()
        await asyncio.gather(*turn.readers, return_exceptions=True)
        await eventually(lambda: subscribed(0))
        again = turn.read()
        await eventually(lambda: subscribed(1))
        await spoken(turn)
        assert (await again).text == TEXT
        await streams.finish(other.uid, 1, status="aborted")
        await asyncio.gather(*other.readers)

    play(settings, scene)


def test_a_reader_that_is_cancelled_ends_wherever_it_is(settings: Settings) -> None:
    """`asyncio.wait_for` of Python 3.11 may swallow a cancellation, and redis-py sends through it."""

    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        for steps in range(120):
            readers = [turn.read() for _ in range(3)]
            for _ in range(steps % 30):
                await asyncio.sleep(0)
            for reader in readers:
                reader.cancel()
            done, pending = await asyncio.wait(readers, timeout=1)
            assert not pending
            assert all(reader.cancelled() for reader in done)

    play(settings, scene)


def test_streams_belong_to_their_loop_and_end_with_it(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        turn = Turn(streams)
        reader = turn.read()
        await eventually(lambda: turn.row.looks > 0)

        async def elsewhere() -> None:
            async with streams.subscribe("t:x"):
                pass

        with pytest.raises(WrongContext):
            await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        await streams.aclose()
        with pytest.raises(StreamUnavailable):
            await reader

    play(settings, scene)


def test_status_changes_reach_the_agent_channel(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        agent = Address("TaskAgent", "a/b c")
        async with streams.subscribe(agent_channel("t", agent)) as heard:
            assert await heard.get(2) == LOOK
            await streams.publish_status(agent, {"status": "running"})
            assert await heard.get(2) == b'{"status":"running"}'

    play(settings, scene)


def test_every_subscriber_looks_again_after_a_reconnect(settings: Settings) -> None:
    async def scene(streams: Streams) -> None:
        async with streams.subscribe("t:one") as one, streams.subscribe("t:two") as two:
            assert (await one.get(2), await two.get(2)) == (b"", b"")
            await cut_subscribers(streams)
            assert (await one.get(2), await two.get(2)) == (b"", b"")
            assert one.live
            assert two.live

    play(settings, scene)
