"""What the accepting step tells of a new row, and that a repeated call finds its own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from think_celery.core.address import Address
from think_celery.core.submission import Kind
from think_celery.errors import AgentBusy
from think_celery.ledger import classes, submissions
from think_celery.ledger.database import Database
from think_celery.ledger.submissions import Identity, Options, Origin, Request
from think_celery.settings import Settings

A = Address("T", "a")
SAID = json.dumps([{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}])
NOON = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings)
    yield database
    database.close()


def plain() -> Request:
    uid = uuid4()
    return Request(A, Identity(uid, str(uid), False, None), Kind.SUBMIT, SAID, b"hash", None)


def elaborate(asker: UUID) -> Request:
    options = Options(
        not_before=NOON,
        not_after=NOON + timedelta(hours=1),
        run_timeout=2.5,
        webhook_url="https://example.org/ended",
        rerun_of="another",
        tell=True,
    )
    origin = Origin(parent_id=asker, root_id=uuid4(), runner=uuid4(), deferred=True)
    identity = Identity(uuid4(), "S", True, "key")
    metadata = json.dumps({"größe": [1, 2.5, -0.0, None, {"tief": True}]})
    return Request(
        A, identity, Kind.CHAT, SAID, b"hash", metadata, '{"x": 1}', options, origin, "00-ab-cd-01"
    )


@pytest.mark.parametrize("hooked", [True, False])
def test_a_new_row_is_told_as_it_is_stored(database: Database, hooked: bool) -> None:
    classes.declare(database, {"T": hooked})
    asking = plain()
    for request in (asking, elaborate(asking.identity.uid)):
        accepted = submissions.accept(database, request)
        assert accepted.accepted
        assert accepted.row == submissions.find_by_uid(database, request.identity.uid)


@pytest.mark.parametrize("if_busy", ["enqueue", "reject", "interrupt"])
def test_a_repeated_call_that_named_nothing_finds_its_own_row(database: Database, if_busy: str) -> None:
    request = replace(plain(), options=Options(if_busy=if_busy))
    first, again = (submissions.accept(database, request) for _ in range(2))
    assert (again.accepted, again.row.uid, again.row.submission) == (
        True,
        first.row.uid,
        first.row.submission,
    )
    assert again.row.nudges == 2, "the first bell may be gone, and an id rings once"
    other = replace(plain(), options=Options(if_busy="reject"))
    with pytest.raises(AgentBusy):
        submissions.accept(database, other)


def test_a_connection_that_is_lost_takes_its_cursor_along(database: Database) -> None:
    assert submissions.accept(database, plain()).row.submission.position == 1
    other = Database(database.settings)
    sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    ended = text(f"{sessions} AND application_name = 'think-celery'")
    assert other.run(lambda connection: connection.execute(ended).scalar_one()) >= 1
    other.close()
    assert submissions.accept(database, plain()).row.submission.position == 2
