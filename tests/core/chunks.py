"""Short ways to write chunks and to fold them."""

from typing import Any

from think_celery.core.folding import Folding

Chunk = dict[str, Any]


def fold(*chunks: Chunk) -> tuple[Folding, list[Chunk]]:
    folding = Folding("m1")
    forwarded = [forward for chunk in chunks if (forward := folding.fold(chunk)) is not None]
    return folding, forwarded


def parts(*chunks: Chunk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fold(*chunks)[0].message()["parts"]
    return found


def block(kind: str, *deltas: str, name: str = "b", end: bool = True) -> list[Chunk]:
    start = {"type": f"{kind}-start", "id": name}
    middle = [{"type": f"{kind}-delta", "id": name, "delta": delta} for delta in deltas]
    return [start, *middle, *([{"type": f"{kind}-end", "id": name}] if end else [])]


def call(kind: str, **more: Any) -> Chunk:
    named = (
        {}
        if kind in ("tool-input-delta", "tool-output-available", "tool-output-error")
        else {"toolName": "find"}
    )
    return {"type": kind, "toolCallId": "c1", **named, **more}
