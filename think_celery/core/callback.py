"""What the caller of `chat` hears of its turn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatStart:
    """Said before any work, while the turn may still wait for its agent.

    Attributes:
        request_id: Names the turn, for `cancel_chat`: in this process at once, in others when `on_start` has
            returned.
    """

    request_id: str


class StreamCallback:
    """Derive from it and override what you want to hear; methods may be `async` or plain (T 1.3).

    The order is one `on_start`, any number of `on_event`, and at most one of `on_done`, `on_error` and
    `on_interrupted`; an aborted or skipped turn has none of them. The turn waits for each method to return.

    >>> class Printer(StreamCallback):
    ...     def on_event(self, json):
    ...         print(json)
    """

    def on_start(self, event: ChatStart) -> object:
        """The turn is about to be placed. Raising ends the call; nothing was written."""
        return None

    def on_event(self, json: str) -> object:
        """A UI message chunk of the AI SDK as JSON text. Raising fails the turn; what was said is kept.

        Another `start` chunk means that the message is said afresh, because something was lost on the way.
        From outside of a worker, raising cancels the turn and goes through to the caller.
        """
        return None

    def on_done(self) -> object:
        """The turn is completed and its message stored. Raising goes through to the caller."""
        return None

    def on_error(self, message: str) -> object:
        """The turn failed; what was said before is stored. Raising goes through to the caller."""
        return None

    def on_interrupted(self) -> object:
        """This attempt has ended and its outcome will not be told here: neither done nor failed."""
        return None
