"""From what `on_chat_message` yields, text or chunks, to a well-formed run of UI message chunks."""

from typing import Any


class Speech:
    """Opens and closes what the agent left implicit: the message, its step, blocks of text and reasoning.

    Clients stop at a delta of a block that was never opened.

    >>> speech = Speech()
    >>> [chunk["type"] for chunk in speech.say("Hi") + speech.say("!") + speech.close()]
    ['start', 'start-step', 'text-start', 'text-delta', 'text-delta', 'text-end', 'finish-step', 'finish']
    """

    def __init__(self) -> None:
        self._started = False
        self._finish: dict[str, Any] | None = None
        self._own_step = False
        self._blocks = 0
        self._in_text = False
        self._open: dict[tuple[str, str], dict[str, Any]] = {}

    def say(self, item: str | dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks for one yielded item.

        Raises:
            TypeError: The item is neither text nor a chunk with a `type`.
        """
        if isinstance(item, str):
            return self._text(item)
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            raise TypeError(
                f"on_chat_message yielded {type(item).__name__}; yield text or a chunk such as "
                "{'type': 'data-progress', 'data': 5}"
            )
        return self._chunk(item)

    def close(self) -> list[dict[str, Any]]:
        """Return what is missing at the end of a turn that ended well; one `finish`, and that last."""
        if not self._started:
            return []
        ends = [*self._end_text(), *self._open.values(), *self._end_step()]
        return [*ends, self._finish or {"type": "finish"}]

    def _text(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        chunks = self._start()
        if not self._in_text:
            if not self._own_step:
                self._own_step = True
                chunks.append({"type": "start-step"})
            self._blocks += 1
            self._in_text = True
            chunks.append({"type": "text-start", "id": self._block})
        return [*chunks, {"type": "text-delta", "id": self._block, "delta": text}]

    def _chunk(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        match chunk["type"]:
            case "start":
                already, self._started = self._started, True
                return [] if already else [chunk]
            case "finish":
                self._finish = chunk  # held back: the agent may go on after its model
                return self._start()
            case "start-step":
                return [*self._start(), *self._end_text(), *self._end_step(), chunk]
            case _:
                return [*self._start(), *self._end_text(), *self._open_block(chunk), chunk]

    def _open_block(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        kind, _, phase = chunk["type"].rpartition("-")
        if kind not in ("text", "reasoning"):
            return []
        block = kind, str(chunk.get("id"))
        ends = self._open.pop(block, None)
        if phase != "end":
            self._open[block] = {"type": f"{kind}-end", "id": chunk.get("id")}
        return [{"type": f"{kind}-start", "id": chunk.get("id")}] if phase == "delta" and not ends else []

    def _start(self) -> list[dict[str, Any]]:
        if self._started:
            return []
        self._started = True
        return [{"type": "start"}]

    def _end_text(self) -> list[dict[str, Any]]:
        if not self._in_text:
            return []
        self._in_text = False
        return [{"type": "text-end", "id": self._block}]

    def _end_step(self) -> list[dict[str, Any]]:
        if not self._own_step:
            return []
        self._own_step = False
        return [{"type": "finish-step"}]

    @property
    def _block(self) -> str:
        return f"text-{self._blocks}"
