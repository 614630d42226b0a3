"""An agent whose response hook does what its test says, and notes when it is called."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

from think_celery import ChatResponse, Think, Turn, message_text


class Log:
    """What the hooks of one agent did, and do."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.responses: list[ChatResponse] = []
        self.inside = 0
        self.most = 0
        self.act: Callable[[Think, ChatResponse], Any] | None = None


logs: dict[str, Log] = defaultdict(Log)


class Chained(Think):
    """Answers with how many messages there are, or fails when asked to; its hook does what the test says."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield f"{turn.text}:{len(turn.messages)}"
        if turn.text == "fail":
            raise RuntimeError("as asked")

    async def on_chat_response(self, response: ChatResponse) -> None:
        log, said = logs[self.name], message_text(response.message or {})
        log.begun.append(said)
        log.responses.append(response)
        log.inside += 1
        log.most = max(log.most, log.inside)
        try:
            if log.act is not None:
                await log.act(self, response)
        finally:
            log.inside -= 1
            log.ended.append(said)
