"""The example of the page about cancelling does what the page says."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from think_celery import AgentHandle, Think, Turn, message_text
from think_celery.core.address import Address
from think_celery.engine.runtime import Runtime

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cancelling.md").read_text(encoding="utf-8")


class Endless(Think):
    """Says one word and then nothing for ever; tells when it has."""

    said = threading.Event()

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield "well "
        self.said.set()
        await asyncio.Event().wait()


class Button:
    """Is pressed in a thread of its own as soon as the agent speaks."""

    def on_click(self, press: Callable[[], None]) -> None:
        def wait_and_press() -> None:
            assert Endless.said.wait(20)
            press()

        self.presser = threading.Thread(target=wait_and_press)
        self.presser.start()


def test_the_example(runtime: Runtime) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    agent = Address("Endless", f"e-{uuid4()}")
    handle = AgentHandle(agent.type_name, agent.name, runtime=runtime)
    button = Button()
    names: dict[str, Any] = {"agent": handle, "stop_button": button}
    exec(code, names)  # noqa: S102 - the project's own page
    button.presser.join(20)
    result, told = names["result"], re.search(r"result\.error  # (\(.*?\));", PAGE)
    assert told is not None
    assert str((result.status, result.error)) == told[1].replace('"', "'")
    assert names["either"].listener_count == names["controller"].signal.listener_count == 0
    assert [message["role"] for message in handle.get_messages()] == ["user", "assistant"]
    assert message_text(handle.get_messages()[1]) == "well "
