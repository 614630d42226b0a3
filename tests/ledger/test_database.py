"""What the ledger says when PostgreSQL is away, refuses, or loses a session."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from think_celery.core.address import Address
from think_celery.core.submission import Kind
from think_celery.errors import LedgerUnavailable, SchemaMismatch
from think_celery.ledger import endings, migrate, submissions
from think_celery.ledger.database import Database
from think_celery.ledger.submissions import Identity, Request
from think_celery.settings import Settings


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings)
    yield database
    database.close()


def elsewhere(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database_url": SecretStr(url), "database_timeout": 0.3})


def test_a_cancel_whose_answer_was_lost_answers_the_same_again(database: Database) -> None:
    agent, uid, call = Address("T", "a"), uuid4(), uuid4()
    identity = Identity(uid, "S", True, None)
    submissions.accept(database, Request(agent, identity, Kind.SUBMIT, "[]", b"", None))
    first, again = (
        endings.cancel(database, agent, submission_id="S", reason="no", call=call) for _ in range(2)
    )
    assert first.ended is not None
    assert again == first
    other = endings.cancel(database, agent, submission_id="S", reason="no", call=uuid4())
    assert other.ended is None
    assert other.terminal is not None


def test_a_missing_schema_names_the_remedy(settings: Settings, database: Database) -> None:
    database.run(lambda connection: connection.execute(text(f"DROP SCHEMA {settings.schema_name} CASCADE")))
    with pytest.raises(SchemaMismatch, match="run `think-celery migrate`"):
        database.step("drop_idle", {"p_idle": None})


def test_an_absent_server(settings: Settings) -> None:
    nowhere = elsewhere(settings, "postgresql://127.0.0.1:1/none")
    database = Database(nowhere)
    with pytest.raises(LedgerUnavailable, match=r"did not answer within 0\.3 s"):
        database.step("drop_idle", {"p_idle": None})
    database.close()
    with pytest.raises(LedgerUnavailable):
        migrate.upgrade(nowhere)
    with pytest.raises(LedgerUnavailable):
        migrate.check(nowhere)


def test_a_wrong_password_is_not_tried_for_long(settings: Settings) -> None:
    url = settings.database_url.get_secret_value()
    wrong = url.replace(url.partition("://")[2].partition("@")[0], "think:wrong-password")
    database = Database(elsewhere(settings, wrong))
    with pytest.raises(LedgerUnavailable) as caught:
        database.step("drop_idle", {"p_idle": None})
    assert "wrong-password" not in str(caught.value)
    database.close()


def test_killed_sessions_are_not_noticed(settings: Settings, database: Database) -> None:
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    query = text(f"{kill} AND query LIKE :mine")
    for _ in range(3):
        database.step("drop_idle", {"p_idle": None})
        database.run(lambda connection: connection.execute(query, {"mine": f"%{settings.schema_name}%"}))
    database.step("drop_idle", {"p_idle": None})
