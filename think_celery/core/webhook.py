"""What a receiver of finish webhooks gets, when it gets it again, and which receivers are in the open."""

import hmac
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote
from uuid import UUID

from think_celery.core.backoff import delay_seconds
from think_celery.core.submission import Submission
from think_celery.core.wire import json_text

EVENT = "submission.ended"
_VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_TRANSLATED = IPv6Network("64:ff9b::/96")


def body(webhook_id: UUID, submission: Submission) -> bytes:
    """Return the JSON text that is sent, the same for every attempt."""
    content = {"type": EVENT, "webhookId": str(webhook_id), "submission": submission.to_json()}
    return json_text(content).encode()


def signature(secret: str, *, timestamp: int, body: bytes) -> str:
    """Return the proof that a body comes from somebody who knows the secret, and from which time.

    >>> signature("s", timestamp=1, body=b"{}")[:12]
    'v1=b253639bc'
    """
    signed = f"{timestamp}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, sha256).hexdigest()


def headers(
    webhook_id: UUID, submission_id: str, *, timestamp: int, body: bytes, secret: str | None
) -> dict[str, str]:
    """Return the headers of one attempt.

    Args:
        webhook_id: The same for every attempt.
        submission_id: Of the submission that ended; sent percent-encoded where it is not visible ASCII.
        timestamp: Unix seconds of the attempt.
        body: What is sent.
        secret: Signs time and body; None sends no signature.
    """
    found = {
        "content-type": "application/json",
        "think-submission": quote(submission_id, safe=_VISIBLE),
        "think-webhook-id": str(webhook_id),
        "think-timestamp": str(timestamp),
    }
    if secret is not None:
        found["think-signature"] = signature(secret, timestamp=timestamp, body=body)
    return found


def retry_seconds(attempts: int) -> float:
    """Return the wait after a number of failed attempts: a second, doubling up to five minutes (S 7).

    >>> [retry_seconds(n) for n in (1, 2, 3, 9, 10, 1000)]
    [1.0, 2.0, 4.0, 256.0, 300.0, 300.0]
    """
    return delay_seconds(attempts, base=1.0, limit=300.0)


def is_public(address: str) -> bool:
    """Return whether an IP address is reached over the open Internet and belongs to one machine.

    >>> [is_public(text) for text in ("8.8.8.8", "10.0.0.1", "::1", "::ffff:127.0.0.1", "224.0.0.1")]
    [True, False, False, False, False]

    Raises:
        ValueError: It is no IP address.
    """
    return _is_public(ip_address(address))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return _is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets to this one end at: mapped, 6to4, or translated (RFC 6052)."""
    if address in _TRANSLATED:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour
