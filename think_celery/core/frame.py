"""Frames of a turn: what its writer logs, what a reader is told, and the rules that keep the two in order.

A frame's id is `attempt-seq`: the start number of the turn and the place within that start, both from 1. Ids
only grow, so a frame that comes twice is known by its id, and one that is missing by the hole that it leaves.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from think_celery.core.record import Record
from think_celery.core.turn import TurnView
from think_celery.core.wire import clean_json
from think_celery.errors import InvalidInput

__all__ = ["Cursor", "EncodedFrame", "Frame", "FrameKind", "Playhead", "StreamEvent", "TurnView"]

_CURSOR = re.compile(r"([1-9][0-9]{0,15})-([1-9][0-9]{0,15})(g?)", re.ASCII)
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_URGENT = frozenset({"tool-output-available", "tool-output-error", "tool-output-denied"})
_CONTENT = frozenset({"text-delta", "reasoning-delta", "tool-input-available"})


class FrameKind(StrEnum):
    """What a frame carries; the value is the field name in the log."""

    CHUNK = "c"
    """One UI message chunk."""
    GAP = "g"
    """Frames up to here were lost before they reached the log."""
    END = "e"
    """The turn's outcome; the last frame of a turn."""


class StreamEvent(Record):
    """What a reader of a turn is told, in order.

    Attributes:
        kind: `chunk` (one UI message chunk), `status` (the submission moved, not terminal yet), `reset` (a
            new start or the stored answer follows: begin the message afresh), `gap` (frames are missing, the
            stored message comes with the end), `end` (the outcome, always last).
        id: Cursor for `after`; None on events that cannot be resumed from.
        chunk: The chunk of a `chunk` event.
        status: The submission's status on `status` and `end`; None on the end of a deleted submission.
        error: Failure text, or the reason of an abort or skip, on `end`.
        message_id: The assistant message that the turn wrote last, on `end`.
        message: That message as stored, on an `end` that follows a gap or a missing log.
    """

    kind: Literal["chunk", "status", "reset", "gap", "end"]
    id: str | None = None
    chunk: dict[str, Any] | None = None
    status: str | None = None
    error: str | None = None
    message_id: str | None = None
    message: dict[str, Any] | None = None


class Cursor(NamedTuple):
    """Place of a frame in its turn.

    >>> Cursor(1, 9) < Cursor(1, 10) < Cursor(2, 1)
    True
    >>> str(Cursor(2, 7))
    '2-7'
    """

    attempt: int
    seq: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.seq}"

    def precedes(self, other: "Cursor") -> bool:
        """True when nothing can be missing between this place and the other.

        >>> Cursor(1, 4).precedes(Cursor(1, 5)), Cursor(1, 4).precedes(Cursor(2, 1))
        (True, True)
        >>> Cursor(1, 4).precedes(Cursor(1, 6)), Cursor(1, 4).precedes(Cursor(2, 2))
        (False, False)
        """
        if other.attempt == self.attempt:
            return other.seq == self.seq + 1
        return other.attempt > self.attempt and other.seq == 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as a reader gets it."""

    at: Cursor
    kind: FrameKind
    data: dict[str, Any]


class EncodedFrame(NamedTuple):
    """One frame as a writer keeps it until it is in the log."""

    seq: int
    kind: FrameKind
    data: bytes


class Playhead:
    """Where one reader stands in one turn, and what the next frame means to it.

    Pure: it is fed frames from the log and from live batches, in any mixture, and returns the events that the
    reader has not had yet.

    Args:
        after: Cursor text of the last event that the reader has had, None for everything.

    Raises:
        InvalidInput: `after` is no cursor.
    """

    def __init__(self, after: str | None = None) -> None:
        self.at = Cursor(0, 0)
        """The last frame taken."""
        self.begun = after is not None
        """True once the reader has had a frame, in this or an earlier reading."""
        self.gapped = False
        """True when frames of the current attempt are missing to the reader."""
        if after is not None:
            match = _CURSOR.fullmatch(after) if isinstance(after, str) else None
            if match is None:
                raise InvalidInput(
                    "after",
                    f"{after!r} is no cursor; pass the id of the last event you have seen, such as 1-42",
                )
            self.at, self.gapped = Cursor(int(match[1]), int(match[2])), bool(match[3])

    @property
    def cursor(self) -> str:
        """Text from which a later reading resumes; it remembers a gap, so that the message still comes."""
        return f"{self.at}g" if self.gapped else str(self.at)

    def knows(self, frame: Frame) -> bool:
        """True when the frame was taken before, or belongs to an attempt that is over."""
        return frame.at <= self.at

    def follows(self, frame: Frame) -> bool:
        """True when nothing is missing before this frame."""
        return self.at.precedes(frame.at)

    def take(self, frame: Frame) -> list[StreamEvent]:
        """Return the events that a frame means, none for a known one; a hole before it becomes a `gap`."""
        if self.knows(frame):
            return []
        events: list[StreamEvent] = []
        missing = frame.kind is FrameKind.GAP or not self.follows(frame)
        if frame.at.attempt > self.at.attempt:
            if self.begun:
                events.append(StreamEvent(kind="reset"))
            self.gapped = False
        if missing:
            self.gapped = True
        self.at, self.begun = frame.at, True
        if missing:
            events.append(StreamEvent(kind="gap", id=self.cursor if frame.kind is FrameKind.GAP else None))
        if frame.kind is FrameKind.CHUNK:
            events.append(StreamEvent(kind="chunk", id=self.cursor, chunk=frame.data))
        elif frame.kind is FrameKind.END:
            events.append(end_event(frame, self.cursor))
        return events


def end_event(frame: Frame, cursor: str) -> StreamEvent:
    """Return the event of an end frame."""
    data = frame.data
    return StreamEvent(
        kind="end",
        id=cursor,
        status=data.get("status"),
        error=data.get("error"),
        message_id=data.get("messageId"),
    )


def end_data(status: str, error: str | None, message_id: str | None) -> dict[str, Any]:
    """Return what an end frame carries."""
    return {"status": status, "error": error, "messageId": message_id}


def is_content(chunk: Mapping[str, Any]) -> bool:
    """True for a chunk that a person sees as part of the answer."""
    return chunk.get("type") in _CONTENT


def is_settled_tool(chunk: Mapping[str, Any]) -> bool:
    """True for the outcome of a tool call."""
    return chunk.get("type") in _URGENT


def encode(value: Mapping[str, Any]) -> bytes:
    """Return compact JSON of a frame's data; what JSON or UTF-8 refuse is cleaned, never raised."""
    try:
        return _JSON.encode(value).encode()
    except (TypeError, ValueError, RecursionError):
        return _JSON.encode(clean_json(value)).encode()


def encode_batch(attempt: int, frames: Iterable[EncodedFrame]) -> bytes:
    """Return the published form of frames of one attempt: `[attempt,[[seq,kind,data],…]]`.

    >>> encode_batch(1, [EncodedFrame(7, FrameKind.CHUNK, b'{"type":"finish"}')])
    b'[1,[[7,"c",{"type":"finish"}]]]'
    """
    body = b",".join([b'[%d,"%b",%b]' % (seq, kind.encode(), data) for seq, kind, data in frames])
    return b"[%d,[%b]]" % (attempt, body)


def decode_batch(payload: bytes) -> list[Frame]:
    """Return the frames of a published batch.

    Raises:
        ValueError: The payload is no such batch.
    """
    try:
        attempt, items = json.loads(payload)
        return [_frame(Cursor(attempt, seq), kind, data) for seq, kind, data in items]
    except (TypeError, ValueError) as error:
        raise ValueError(f"no batch of frames: {error}") from None


def decode_entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Frame | None:
    """Return the frame of a log entry, None for an entry that is not of our making."""
    try:
        attempt, _, seq = entry_id.partition(b"-")
        ((kind, data),) = fields.items()
        return _frame(Cursor(int(attempt), int(seq)), kind.decode(), json.loads(data))
    except (TypeError, ValueError):
        return None


def _frame(at: Cursor, kind: str, data: Any) -> Frame:
    if not isinstance(data, dict) or not isinstance(at.attempt, int) or not isinstance(at.seq, int):
        raise ValueError("a frame has whole numbers for its place and an object for its data")
    return Frame(at, FrameKind(kind), data)
