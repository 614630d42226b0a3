"""The recordings, both readers over them, and where their messages differ."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from tests.golden.node import read_all
from tests.golden.record import FOLDER
from think_celery.core.folding import Folding
from think_celery.core.wire import chunks_of_message

TABLE = FOLDER / "differences.json"
SPLITS = 8
ABSENT = object()
_DELTAS = ("delta", "inputTextDelta")
Chunk = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """A stream of chunks, and the message that it goes on with, None for a new one."""

    chunks: list[Chunk]
    onto: dict[str, Any] | None


@dataclass(frozen=True)
class Read:
    """The message of one recording as each reader has it.

    Attributes:
        ours: What `Folding` builds.
        theirs: What the AI SDK builds of the same chunks, and `refused` when it gave up at one of them.
        clients: What the AI SDK builds of the chunks that `Folding` forwards to observers.
        late: What the AI SDK builds of the chunks that late readers are given for the finished message.
    """

    ours: dict[str, Any]
    theirs: dict[str, Any]
    clients: dict[str, Any]
    late: dict[str, Any]


def recordings() -> dict[str, Recording]:
    """Return the stored recordings by name."""
    return {path.stem: _load(path) for path in sorted(FOLDER.glob("*.jsonl"))}


def _load(path: Path) -> Recording:
    chunks = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    onto = path.with_suffix(".onto.json")
    return Recording(chunks, json.loads(onto.read_text(encoding="utf-8")) if onto.exists() else None)


def read(recorded: dict[str, Recording]) -> dict[str, list[Read]]:
    """Return what came of every recording: first as it is, then with its texts cut elsewhere."""
    variants = [
        (name, variant)
        for name, recording in recorded.items()
        for variant in [recording, *(cut(recording, f"{name} {number}") for number in range(SPLITS))]
    ]
    folded = [_fold(variant) for _, variant in variants]
    answers = iter(read_all(wanted for _, streams in folded for wanted in streams))
    found: dict[str, list[Read]] = {name: [] for name in recorded}
    for (name, _), (ours, streams) in zip(variants, folded, strict=True):
        theirs, clients, late = (_message(next(answers)) for _ in streams)
        found[name].append(Read(ours, theirs, clients, late))
    return found


def _fold(recording: Recording) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the message, and the streams for the other reader: recorded, forwarded, for late readers."""
    folding = Folding("m1") if recording.onto is None else Folding.onto(recording.onto)
    begun, nothing = folding.message(), Folding("m1").message()
    forwarded = [chunk for given in recording.chunks if (chunk := folding.fold(given)) is not None]
    message = folding.message()
    return message, [
        {"chunks": recording.chunks, "onto": begun},
        {"chunks": forwarded, "onto": begun},
        {"chunks": chunks_of_message(message), "onto": nothing},
    ]


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["message"]
    return message if answer["refused"] is None else {**message, "refused": True}


def cut(recording: Recording, seed: str) -> Recording:
    """Return a recording with its deltas cut at random places, even inside a character."""
    dice = random.Random(seed)
    return Recording([piece for chunk in recording.chunks for piece in _pieces(chunk, dice)], recording.onto)


def _pieces(chunk: Chunk, dice: random.Random) -> Iterator[Chunk]:
    name = next((name for name in _DELTAS if chunk.get(name)), None)
    if name is None:
        yield chunk
        return
    units = chunk[name].encode("utf-16-le", "surrogatepass")
    length = len(units) // 2
    borders = sorted({0, length, *(dice.randint(0, length) for _ in range(dice.randint(0, 3)))})
    for start, end in pairwise(borders):
        yield {**chunk, name: units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")}


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield JSON path, our value and their value of every difference; `ABSENT` where there is none."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            inner = f"{path}.{key}" if path else key
            yield from differences(ours.get(key, ABSENT), theirs.get(key, ABSENT), inner)
    elif isinstance(ours, list) and isinstance(theirs, list):
        for place, (mine, other) in enumerate(zip_longest(ours, theirs, fillvalue=ABSENT)):
            yield from differences(mine, other, f"{path}[{place}]")
    elif json_of(ours) != json_of(theirs):
        yield path, ours, theirs


def json_of(value: Any) -> str:
    """Return a value's JSON text, which tells `1` from `true`; of `ABSENT` that it is absent."""
    return "absent" if value is ABSENT else json.dumps(value, sort_keys=True)
