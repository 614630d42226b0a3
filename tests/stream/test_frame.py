"""Frames are values: what is encoded comes back, and a playhead tells every frame once, in order."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core.frame import (
    Cursor,
    EncodedFrame,
    Frame,
    FrameKind,
    Playhead,
    decode_batch,
    decode_entry,
    encode,
    encode_batch,
)
from think_celery.errors import InvalidInput

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
CHUNKS = st.dictionaries(st.text("xyz", min_size=1, max_size=4), JSON, max_size=4)


def chunk(attempt: int, seq: int) -> Frame:
    return Frame(Cursor(attempt, seq), FrameKind.CHUNK, {"type": "text-delta", "delta": f"{attempt}-{seq}"})


@given(st.integers(1, 9), st.lists(CHUNKS, min_size=1, max_size=5))
def test_a_batch_comes_back_as_it_was(attempt: int, chunks: list[dict[str, Any]]) -> None:
    coded = [EncodedFrame(seq, FrameKind.CHUNK, encode(data)) for seq, data in enumerate(chunks, 1)]
    assert decode_batch(encode_batch(attempt, coded)) == [
        Frame(Cursor(attempt, seq), FrameKind.CHUNK, data) for seq, data in enumerate(chunks, 1)
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b"[1,[[1]]]",
        b'[1,[[1,"q",{}]]]',
        b'[1,[[1,"c",7]]]',
        b"\xff",
        b'["1",[[1,"c",{}]]]',
    ],
)
def test_a_payload_that_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="no batch"):
        decode_batch(payload)


@pytest.mark.parametrize(
    "entry",
    [
        (b"1-1", {b"c": b"nope"}),
        (b"1-1", {b"zz": b"{}"}),
        (b"1-1", {}),
        (b"x", {b"c": b"{}"}),
        (b"1-1", {b"c": b"1"}),
    ],
)
def test_an_entry_of_foreign_make_is_ignored(entry: tuple[bytes, dict[bytes, bytes]]) -> None:
    assert decode_entry(*entry) is None


def test_what_json_refuses_is_cleaned() -> None:
    hostile = {"type": "data-x", "data": {"nan": float("nan"), "half": "\ud800", "set": {1}, "raw": b"\xff"}}
    assert json.loads(encode(hostile))["data"]["half"] == "�"


@pytest.mark.parametrize(
    "after", ["", "1", "1-", "-1", "0-1", "1-0", "a-b", "1-1-1", " 1-1", "1-1\n", "²-1", "1-1x"]
)
def test_an_invalid_cursor_is_refused_by_name(after: str) -> None:
    with pytest.raises(InvalidInput, match="after: "):
        Playhead(after)


def test_a_cursor_remembers_a_gap() -> None:
    head = Playhead()
    first, second = head.take(chunk(1, 5))
    assert (first.kind, first.id, second.id) == ("gap", None, "1-5g")
    again = Playhead(second.id)
    assert (again.at, again.gapped) == (Cursor(1, 5), True)
    assert [event.id for event in again.take(chunk(1, 6))] == ["1-6g"]


def test_a_new_attempt_resets_and_forgets_the_gap() -> None:
    head = Playhead("1-5g")
    assert [event.kind for event in head.take(chunk(2, 1))] == ["reset", "chunk"]
    assert not head.gapped
    assert head.take(chunk(1, 6)) == []


def test_the_first_attempt_that_a_reader_sees_is_no_reset() -> None:
    assert [event.kind for event in Playhead().take(chunk(3, 1))] == ["chunk"]


def test_a_gap_frame_is_one_gap() -> None:
    head = Playhead("1-2")
    gap = Frame(Cursor(1, 9), FrameKind.GAP, {})
    assert [event.kind for event in [*head.take(gap), *head.take(chunk(1, 10))]] == ["gap", "chunk"]


@given(st.data())
def test_any_mixture_of_log_and_live_tells_every_frame_once_in_order(data: st.DataObject) -> None:
    """Frames come in batches, some lost, some repeated; a hole is filled from the log before going on."""
    log = [chunk(1, seq) for seq in range(1, data.draw(st.integers(1, 12)) + 1)]
    log += [chunk(2, seq) for seq in range(1, data.draw(st.integers(0, 12)) + 1)]
    head, told = Playhead(), []
    for start in data.draw(st.lists(st.integers(0, len(log)), max_size=12)):
        for frame in log[start : start + data.draw(st.integers(0, 6))]:
            if not head.knows(frame) and not head.follows(frame):
                told += [event for missed in log[: log.index(frame)] for event in head.take(missed)]
            told += head.take(frame)
    told += [event for frame in log for event in head.take(frame)]
    ids = [Cursor(*map(int, event.id.split("-"))) for event in told if event.id]
    # A frame of a later attempt ends the earlier one, so the tail of the earlier one may go untold.
    assert all(one < two for one, two in pairwise(ids))
    assert ids[-1] == log[-1].at
    last = [cursor for cursor in ids if cursor.attempt == log[-1].at.attempt]
    assert last == [frame.at for frame in log if frame.at.attempt == log[-1].at.attempt]
    assert "gap" not in [event.kind for event in told]
