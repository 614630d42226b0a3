"""Which addresses may be told of a submission's end."""

from urllib.parse import urlsplit

from think_celery.core.message import check_identifier
from think_celery.errors import InvalidInput


def check(url: object) -> str:
    """Return a usable http(s) address.

    Raises:
        InvalidInput: No absolute http or https address, or one with a password in it.
    """
    text = check_identifier("webhook_url", url)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        raise InvalidInput("webhook_url", f"{text!r} is no address: {error}") from None
    if parts.scheme not in {"http", "https"} or not host or port == 0 or " " in text:
        raise InvalidInput("webhook_url", f"{text!r} is not of the form https://host/path")
    if parts.username or parts.password:
        raise InvalidInput("webhook_url", "must not contain a password; set THINK_WEBHOOK_SECRET to sign")
    return text
