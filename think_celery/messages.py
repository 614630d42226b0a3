"""Messages as callers write them."""

from typing import Any
from uuid import uuid4

from think_celery.core.message import UIMessage, text_message


def user_message(
    text: str, *, message_id: str | None = None, metadata: dict[str, Any] | None = None
) -> UIMessage:
    """Return a user message with one text part.

    Args:
        text: What the user says.
        message_id: Unique in the conversation; default a random uuid. A message whose id the conversation
            already holds is not added again.
        metadata: A JSON object kept with the message.

    >>> user_message("Process event 123", message_id="m1").to_json()
    {'id': 'm1', 'role': 'user', 'parts': [{'type': 'text', 'text': 'Process event 123'}]}
    """
    return text_message(text, message_id=message_id or str(uuid4()), metadata=metadata)
