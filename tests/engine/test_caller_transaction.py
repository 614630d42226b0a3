"""Submitting inside the caller's own transaction: it commits or rolls back with the caller's data."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.orm import Session

from tests.engine.stage import PATIENCE_SECONDS, Stage, beside
from think_celery.core.submission import Receipt, Status, Submission
from think_celery.engine import placing
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.errors import IdentityConflict, InvalidInput, LedgerUnavailable
from think_celery.testing import eventually

Own = Session | Connection


@pytest.fixture
def engine(stage: Stage) -> Iterator[Engine]:
    """The caller's own engine, with a table of the caller's."""
    url = make_url(stage.runtime.settings.database_url.get_secret_value()).set(
        drivername="postgresql+psycopg"
    )
    schema = stage.runtime.settings.schema_name
    engine = create_engine(url, connect_args={"options": f"-c search_path=orders_{schema}"})
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA orders_{schema}"))
        connection.execute(text(f"CREATE TABLE orders_{schema}.orders (name text)"))
    yield engine
    engine.dispose()


class Undone(Exception):
    """Makes a transaction roll back."""


@contextmanager
def transaction(engine: Engine, kind: str, *, end: str = "commit") -> Iterator[Own]:
    """The two ways of SQLAlchemy users."""
    with suppress(Undone), Session(engine) if kind == "session" else engine.connect() as own, own.begin():
        yield own
        if end == "rollback":
            raise Undone


def order(own: Own, name: str) -> None:
    own.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})


def orders(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM orders")).scalars())


def placed(stage: Stage, submission_id: str) -> Submission:
    """Return a row once it has its place and its hook has heard of it, so that it may start."""

    def ready() -> Submission | bool:
        query = "SELECT position IS NOT NULL AND held_until IS NULL FROM {schema}.submissions"
        ((is_ready,),) = stage.sql(f"{query} WHERE submission_id = :id", id=submission_id)
        return is_ready and stage.row(submission_id)

    return eventually(ready)  # type: ignore[return-value]


both = pytest.mark.parametrize("kind", ["session", "connection"])


@both
def test_a_commit_runs_it(stage: Stage, engine: Engine, kind: str) -> None:
    with transaction(engine, kind) as own:
        order(own, "A")
        receipt = stage.handle.submit_messages("say A", submission_id="A", connection=own)
        assert (receipt.accepted, receipt.status, receipt.position) == (True, Status.PENDING, None)
        assert stage.handle.inspect_submission("A") is None
        assert stage.drain() == "nothing ran; lane is idle"
        assert stage.script.heard == [], "the hook follows the commit"
    row = placed(stage, "A")
    assert row.position == 1
    eventually(lambda: stage.script.statuses() == ["pending"])
    assert stage.drain() == "1 completed; lane is idle"
    assert stage.wait("A").status is Status.COMPLETED
    assert orders(engine) == ["A"]
    assert stage.script.statuses() == ["pending", "running", "completed"]


@both
def test_a_rollback_takes_it_along(stage: Stage, engine: Engine, kind: str) -> None:
    with transaction(engine, kind, end="rollback") as own:
        order(own, "A")
        receipt = stage.handle.submit_messages("say A", idempotency_key="K", connection=own)
    assert stage.handle.inspect_submission(receipt.submission_id) is None
    assert orders(engine) == []
    assert stage.drain() == "nothing ran; lane is idle"
    again = stage.handle.submit_messages("say A", idempotency_key="K")
    assert again.accepted, "its key is free"
    assert stage.script.statuses() == ["pending"]
    assert stage.drain() == "1 completed; lane is idle"


@both
def test_rows_keep_the_order_of_their_commits(stage: Stage, engine: Engine, kind: str) -> None:
    with transaction(engine, kind) as own:
        for name in ("A", "B"):
            stage.handle.submit_messages(f"say {name}", submission_id=name, connection=own)
        stage.handle.submit_messages("say first", submission_id="first")
    for name in ("A", "B"):
        placed(stage, name)
    stage.drain()
    assert stage.texts("assistant")[0] == "first "
    assert sorted(stage.texts("assistant")[1:]) == ["A ", "B "]


@both
def test_an_open_transaction_disturbs_no_other_call_of_the_agent(
    stage: Stage, engine: Engine, kind: str, make_runtime: Callable[..., Runtime]
) -> None:
    """Not the claims, settles, cancels, clears and deletions of the agent either."""
    other = Stage(make_runtime(), stage.address)
    with transaction(engine, kind) as own:
        stage.handle.submit_messages("say held", submission_id="held", idempotency_key="K", connection=own)
        with beside(lambda: everything(other)) as calls:
            calls.join(PATIENCE_SECONDS)
            assert not calls.is_alive(), "no call waits for the caller's transaction"
        assert stage.handle.inspect_submission("held") is None
    placed(stage, "held")
    stage.drain()
    assert stage.texts("assistant") == ["held "]


def everything(stage: Stage) -> None:
    """Every kind of call on an agent, in a short life."""
    handle = stage.handle
    done = handle.submit_messages("say x", idempotency_key="other")
    assert stage.drain() == "1 completed; lane is idle"
    assert handle.wait_for_submission(done.submission_id, timeout=5) is not None
    assert handle.delete_submission(done.submission_id)
    again = handle.rerun(handle.submit_messages("say y").submission_id)
    assert again is not None
    assert handle.cancel_submission(again.submission_id).outcome == "cancelled"
    handle.pause()
    handle.resume()
    assert len(handle.cancel_all()) == 1
    handle.reset_turn_state()
    handle.clear_messages()
    assert handle.delete_submissions() == 2
    assert handle.submit_messages("say z", if_busy="reject").accepted
    assert handle.submit_messages("say z", if_busy="rollback").accepted
    handle.clear_messages()


@both
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_only_the_same_key_waits_for_the_open_transaction_and_holds_up_nobody(
    stage: Stage, engine: Engine, kind: str, end: str, make_runtime: Callable[..., Runtime]
) -> None:
    other = Stage(make_runtime(), stage.address)
    answers: list[Receipt] = []

    def same_key() -> None:
        answers.append(other.handle.submit_messages("say same", idempotency_key="K"))

    waiter = threading.Thread(target=same_key)
    with transaction(engine, kind, end=end) as own:
        held = stage.handle.submit_messages("say same", idempotency_key="K", connection=own)
        waiter.start()
        eventually(lambda: waits_for_lock(stage))
        with beside(lambda: everything(other)) as calls:
            calls.join(PATIENCE_SECONDS)
            assert not calls.is_alive(), "whoever waits for the key keeps nobody else waiting"
        assert answers == []
    waiter.join(PATIENCE_SECONDS)
    (answer,) = answers
    assert answer.accepted is (end == "rollback")
    assert (answer.submission_id == held.submission_id) is (end == "commit")
    placed(stage, answer.submission_id)
    stage.drain()
    assert stage.texts() == ["say same"]


def waits_for_lock(stage: Stage) -> bool:
    return bool(stage.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))


def test_many_calls_with_the_key_of_an_open_transaction_do_not_use_up_the_process(
    stage: Stage, engine: Engine, make_runtime: Callable[..., Runtime]
) -> None:
    """A worker's heartbeat and its settles go through the same pool of connections."""
    other = Stage(make_runtime(), stage.address)
    answers: list[Any] = []

    def same_key() -> None:
        try:
            answers.append(other.handle.submit_messages("say same", idempotency_key="K").accepted)
        except LedgerUnavailable as error:
            answers.append(error)

    size = other.runtime.settings.database_pool_size
    with transaction(engine, "session") as own:
        stage.handle.submit_messages("say same", idempotency_key="K", connection=own)
        callers = [threading.Thread(target=same_key) for _ in range(size + 2)]
        for caller in callers:
            caller.start()
        eventually(lambda: waits_for_lock(stage))
        with beside(lambda: everything(other)) as calls:
            calls.join(PATIENCE_SECONDS / 4)
            assert not calls.is_alive()
    for caller in callers:
        caller.join(PATIENCE_SECONDS)
    assert len(answers) == size + 2
    assert True not in answers


@both
def test_a_known_identity_is_answered_inside_a_transaction_too(
    stage: Stage, engine: Engine, kind: str
) -> None:
    stage.handle.submit_messages("say x", submission_id="A", idempotency_key="K")
    stage.drain()
    with transaction(engine, kind) as own:
        known = stage.handle.submit_messages("say x", idempotency_key="K", connection=own)
        assert (known.accepted, known.status, known.payload_matches) == (False, Status.COMPLETED, True)
        with pytest.raises(IdentityConflict):
            stage.handle.submit_messages("say x", submission_id="B", idempotency_key="K", connection=own)
        twice = [
            stage.handle.submit_messages("say y", idempotency_key="new", connection=own).accepted
            for _ in range(2)
        ]
        assert twice == [True, False]
        with pytest.raises(InvalidInput, match="metadata"):
            stage.handle.submit_messages("y", idempotency_key="bad", metadata={"x": {1}}, connection=own)
        unread = stage.handle.submit_messages("y", idempotency_key="new", metadata={"x": {1}}, connection=own)
        assert (unread.accepted, unread.payload_matches) == (False, False)
        order(own, "still usable")
    assert orders(engine) == ["still usable"]
    assert len(stage.handle.list_submissions()) == 2


def test_a_process_whose_connections_are_all_in_use_says_so(make_runtime: Callable[..., Runtime]) -> None:
    runtime = make_runtime(database_pool_size=1, database_timeout=0.2)
    with runtime.database.engine.connect():
        with pytest.raises(LedgerUnavailable, match="all 1 connections of this process were busy"):
            runtime.database.run(lambda connection: connection.execute(text("SELECT 1")))
        with pytest.raises(LedgerUnavailable, match="THINK_DATABASE_POOL_SIZE"):
            runtime.database.step("drop_idle", {"p_idle": timedelta(hours=1)})


def test_only_enqueue_is_possible_inside_a_transaction(stage: Stage, engine: Engine) -> None:
    with Session(engine) as session:
        for if_busy in ("reject", "interrupt", "rollback"):
            with pytest.raises(InvalidInput, match="if_busy: inside your own transaction only enqueue"):
                stage.handle.submit_messages("hi", if_busy=if_busy, connection=session)  # type: ignore[arg-type]


def test_a_savepoint_is_no_commit(stage: Stage, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(placing, "_soon", lambda *about: tried.append(about))
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            stage.handle.submit_messages("say A", submission_id="A", connection=session)
        with session.begin_nested() as savepoint:
            stage.handle.submit_messages("say B", submission_id="B", connection=session)
            savepoint.rollback()
        assert tried == [], "it would be looked for in vain until the real commit"
    assert len(tried) >= 1
    assert stage.row("A").status is Status.PENDING
    assert stage.handle.inspect_submission("B") is None


def test_a_long_lived_session_does_not_gather_leftovers(
    stage: Stage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    monkeypatch.setattr(placing, "_soon", lambda *about: tried.append(about))
    with Session(engine) as session:
        for number in range(3):
            stage.handle.submit_messages(f"say {number}", connection=session)
            session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
        assert tried == [], "what was rolled back is not looked for"
        for number in range(3):
            stage.handle.submit_messages(f"say {number}", connection=session)
            session.commit()
            assert len(tried) == number + 1


def test_the_sweeper_places_what_its_producer_could_not(
    stage: Stage, engine: Engine, make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_soon", lambda *_: None)  # the producer dies with the commit
    with Session(engine) as session, session.begin():
        stage.handle.submit_messages("say A", submission_id="A", connection=session)
    sweeper = make_runtime()
    sweep(sweeper)
    assert stage.row("A").position is None, "its producer is given two seconds"
    stage.sql("UPDATE {schema}.submissions SET created_at = created_at - interval '3 seconds'")
    sweep(sweeper)
    assert stage.row("A").position == 1
    assert stage.script.heard == [], "the sweeper calls no hooks, which may be slow"
    assert stage.drain() == "1 completed; lane is idle"
    assert stage.script.statuses() == ["pending", "running", "completed"]


def test_a_committed_row_without_a_place_is_like_any_other(
    stage: Stage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_soon", lambda *_: None)
    for name in ("cancelled", "skipped", "gone"):
        with Session(engine) as session, session.begin():
            stage.handle.submit_messages("say x", submission_id=name, connection=session)
        assert stage.row(name).position is None
        assert not stage.handle.delete_submission(name)
        assert [row.submission_id for row in stage.handle.list_submissions(limit=1)] == [name]
        match name:
            case "cancelled":
                found = stage.handle.cancel_submission(name, "no")
                assert (found.outcome, found.previous_status) == ("cancelled", "pending")
            case "skipped":
                stage.handle.reset_turn_state()
                assert stage.row(name).status is Status.SKIPPED
            case "gone":
                assert stage.handle.delete_agent() is True
    assert stage.handle.list_submissions() == []
    placing.place_forgotten(stage.runtime)
    assert stage.drain() == "nothing ran; lane is idle"


def test_a_cancelled_row_gets_its_place_all_the_same(
    stage: Stage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_soon", lambda *_: None)
    with Session(engine) as session, session.begin():
        stage.handle.submit_messages("say x", submission_id="A", connection=session)
    stage.handle.cancel_submission("A")
    stage.sql("UPDATE {schema}.submissions SET created_at = created_at - interval '3 seconds'")
    placing.place_forgotten(stage.runtime)
    row = stage.row("A")
    assert (row.status, row.position) == (Status.ABORTED, 1)
    assert stage.script.statuses() == ["pending", "aborted"] or stage.script.statuses() == ["aborted"]
    assert stage.drain() == "nothing ran; lane is idle"


def test_an_autocommit_connection_is_placed_at_once(stage: Stage, engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        stage.handle.submit_messages("say A", submission_id="A", connection=connection)
        assert stage.row("A").status is Status.PENDING
    stage.sql("UPDATE {schema}.submissions SET created_at = created_at - interval '3 seconds'")
    placing.place_forgotten(stage.runtime)
    assert placed(stage, "A").position == 1


def test_asyncio_sessions_are_named_with_their_remedy(stage: Stage) -> None:
    class AsyncSession:
        sync_session = object()

    with pytest.raises(InvalidInput, match=r"AsyncSession is no SQLAlchemy .*pass its \.sync_session"):
        stage.handle.submit_messages("hi", connection=AsyncSession())
