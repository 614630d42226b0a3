"""The pure part of finish webhooks: which addresses are public, what is sent, when again."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from think_celery.core import webhook
from think_celery.core.submission import Kind, Status, Submission

WEBHOOK = UUID("0e9c7e53-4f0b-4a53-8b3a-6f4d3f1d2a77")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.10", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "255.255.255.255", "240.0.0.1", "224.0.0.1", "239.1.2.3", "192.0.2.1", "198.18.0.1",
        "::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "ff0e::1",
        "2001:db8::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe",
        "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:c0a8:101::1",
    ],
)  # fmt: skip
def test_special_addresses_are_not_public(address: str) -> None:
    assert not webhook.is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_ordinary_addresses_are_public(address: str) -> None:
    assert webhook.is_public(address)


def test_a_name_is_no_address() -> None:
    with pytest.raises(ValueError):
        webhook.is_public("localhost")


def test_the_body_is_the_public_record() -> None:
    submission = Submission(
        submission_id="ü",
        agent="A/b",
        kind=Kind.SUBMIT,
        status=Status.ABORTED,
        request_id="ü",
        created_at=WHEN,
    )
    assert json.loads(webhook.body(WEBHOOK, submission)) == {
        "type": "submission.ended",
        "webhookId": str(WEBHOOK),
        "submission": submission.to_json(),
    }


def test_any_id_fits_into_a_header() -> None:
    def sent(submission_id: str) -> str:
        found = webhook.headers(WEBHOOK, submission_id, timestamp=1, body=b"", secret=None)
        assert "think-signature" not in found
        return found["think-submission"]

    assert sent('order-42/a:b;c="d"?&') == 'order-42/a:b;c="d"?&'
    assert sent(" 50% ü😀") == "%2050%25%20%C3%BC%F0%9F%98%80"
