"""The steps of a lane against a real PostgreSQL: what each guard lets through and what it refuses."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from think_celery.core.address import Address
from think_celery.core.submission import Kind, Status
from think_celery.errors import IdentityConflict
from think_celery.ledger import lanes, messages, submissions, workers
from think_celery.ledger.database import Database
from think_celery.ledger.lanes import Applied, Busy, Claim, Ending, Rest
from think_celery.ledger.submissions import Acceptance, Identity, Request
from think_celery.ledger.survey import survey
from think_celery.settings import Settings

A = Address("T", "a")


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings)
    yield database
    database.close()


def request(
    said: str = "hi",
    *,
    sid: str | None = None,
    key: str | None = None,
    agent: Address = A,
    uid: UUID | None = None,
) -> Request:
    uid = uid or uuid4()
    body = [{"id": f"m-{uid}", "role": "user", "parts": [{"type": "text", "text": said}]}]
    identity = Identity(uid, sid or str(uid), sid is not None, key)
    return Request(agent, identity, Kind.SUBMIT, json.dumps(body), b"hash", None)


def accept(database: Database, said: str = "hi", **identity: Any) -> Acceptance:
    return submissions.accept(database, request(said, **identity))


def introduce(database: Database) -> UUID:
    worker = workers.Worker(uuid4(), "host", 1, "threads", "0", ["T"])
    workers.beat(database, worker, consumed=False)
    return worker.worker_id


def claim(database: Database, worker: UUID, *, agent: Address = A, claim_id: UUID | None = None) -> Claim:
    answer = lanes.claim(database, agent, worker=worker, claim_id=claim_id or uuid4())
    assert isinstance(answer, Claim)
    return answer


def done(said: str = "answer") -> Ending:
    message = {"id": str(uuid4()), "role": "assistant", "parts": [{"type": "text", "text": said}]}
    return Ending(Status.COMPLETED, message=message)


def execute(database: Database, statement: str, **parameters: Any) -> None:
    database.run(lambda connection: connection.execute(text(database.sql(statement)), parameters))


@pytest.mark.spec("S32")
def test_positions_follow_acceptance_and_rows_run_in_that_order(database: Database) -> None:
    accepted = [accept(database, str(number)) for number in range(5)]
    assert [a.row.submission.position for a in accepted] == [1, 2, 3, 4, 5]
    execute(database, "UPDATE {schema}.submissions SET created_at = now()")  # equal times decide nothing
    worker = introduce(database)
    current: Claim | Rest | None = claim(database, worker)
    seen = []
    while isinstance(current, Claim):
        seen.append(current.row.uid)
        assert lanes.apply(database, current).outcome is Applied.APPLIED
        current = lanes.settle(database, current, done(), worker=worker, next_claim=uuid4()).next
    assert seen == [a.row.uid for a in accepted]


def test_order_is_commit_order_with_two_producers(database: Database) -> None:
    """A producer that holds the lane's lock makes the next one wait: no later place becomes visible first."""
    accept(database, "first")
    second: list[Acceptance] = []
    with database.engine.connect().execution_options(isolation_level="READ COMMITTED") as slow:
        with slow.begin():
            slow.execute(text(database.sql("SELECT {schema}.lock_lane('T', 'a')")))
            thread = threading.Thread(target=lambda: second.append(accept(database, "second")))
            thread.start()
            thread.join(0.3)
            assert thread.is_alive(), "the second accept must wait for the lane"
        thread.join(10)
    assert second[0].row.submission.position == 2


def test_a_lane_runs_one_row(database: Database) -> None:
    accept(database)
    accept(database)
    worker = introduce(database)
    claim(database, worker)
    assert lanes.claim(database, A, worker=introduce(database), claim_id=uuid4()) == Busy(worker)
    with pytest.raises(Exception, match="submissions_one_running"):
        execute(database, "UPDATE {schema}.submissions SET status = 'running' WHERE status = 'pending'")


@pytest.mark.spec("S33")
def test_many_claimers_get_each_row_once(database: Database) -> None:
    for number in range(20):
        accept(database, str(number))
    ran: list[UUID] = []
    lock = threading.Lock()

    def work(_: int) -> None:
        worker = introduce(database)
        for _ in range(40):
            answer = lanes.claim(database, A, worker=worker, claim_id=uuid4())
            while isinstance(answer, Claim):
                with lock:
                    ran.append(answer.row.uid)
                following = lanes.settle(database, answer, done(), worker=worker, next_claim=uuid4()).next
                assert following is not None
                answer = following

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(ran) == 20
    assert len(set(ran)) == 20


def test_nothing_to_claim(database: Database) -> None:
    assert lanes.claim(database, A, worker=introduce(database), claim_id=uuid4()) == Rest("idle")
    accept(database)
    worker = introduce(database)
    first = claim(database, worker)
    assert lanes.settle(database, first, done(), worker=worker, next_claim=uuid4()).next == Rest("idle")
    assert lanes.claim(database, A, worker=worker, claim_id=uuid4()) == Rest("idle")


def test_repeating_a_step_after_a_lost_reply_changes_nothing(database: Database) -> None:
    """The driver repeats a whole step when the reply was lost (field report: commit of unknown outcome)."""
    uid = uuid4()
    first = submissions.accept(database, request("hi", key="k", uid=uid))
    again = submissions.accept(database, request("hi", key="k", uid=uid))
    assert first.accepted
    assert again.accepted, "the caller's own row is not a duplicate"
    accept(database, "next")
    worker, claim_id, next_id = introduce(database), uuid4(), uuid4()
    one = claim(database, worker, claim_id=claim_id)
    assert claim(database, worker, claim_id=claim_id).fence == one.fence
    assert lanes.apply(database, one).transcript == lanes.apply(database, one).transcript
    ending = done()
    settled = lanes.settle(database, one, ending, worker=worker, next_claim=next_id)
    repeated = lanes.settle(database, one, ending, worker=worker, next_claim=next_id)
    assert isinstance(settled.next, Claim)
    assert isinstance(repeated.next, Claim)
    assert repeated.next.fence == settled.next.fence
    assert len(messages.transcript(database, A)) == 2


def test_a_late_worker_changes_nothing(database: Database) -> None:
    accept(database)
    worker = introduce(database)
    old = claim(database, worker)
    workers.leave(database, worker)
    orphan = lanes.orphans(database)[0]
    rescued = lanes.rescue(database, orphan, error=None)
    assert rescued is not None
    assert rescued.submission.status is Status.PENDING
    assert lanes.apply(database, old).outcome is Applied.LOST
    late = lanes.settle(database, old, done("late"), worker=worker, next_claim=None)
    assert not late.settled
    assert late.row is not None
    assert late.row.submission.status is Status.PENDING
    assert messages.transcript(database, A) == []
    new = claim(database, introduce(database))
    assert new.fence > old.fence
    assert new.row.submission.attempt == 2
    assert new.row.submission.position == 1


def test_rescue_leaves_living_workers_and_faster_rescuers_alone(database: Database) -> None:
    accept(database)
    worker = introduce(database)
    held = claim(database, worker)
    assert lanes.orphans(database) == []
    orphan = lanes.Orphan(A, held.fence, applied=False, starts=1)
    assert lanes.rescue(database, orphan, error=None) is None
    execute(database, "UPDATE {schema}.workers SET heartbeat_at = now() - interval '1 hour'")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: lanes.rescue(database, orphan, error=None), range(4)))
    assert sum(result is not None for result in results) == 1


def test_an_applied_turn_is_never_requeued(database: Database) -> None:
    accept(database)
    worker = introduce(database)
    held = claim(database, worker)
    lanes.apply(database, held)
    workers.leave(database, worker)
    orphan = lanes.orphans(database)[0]
    assert orphan.applied
    assert lanes.rescue(database, orphan, error=None) is None
    ended = lanes.rescue(database, orphan, error="interrupted")
    assert ended is not None
    assert (ended.submission.status, ended.submission.error) == (Status.ERROR, "interrupted")


@pytest.mark.spec("S144")
def test_a_row_that_never_gets_started_ends_in_error(database: Database) -> None:
    accept(database)
    accept(database, "next")
    execute(database, "UPDATE {schema}.submissions SET attempt = 10 WHERE position = 1")
    held = claim(database, introduce(database))
    assert held.row.submission.position == 2
    rows = submissions.listing(database, A, statuses=[Status.ERROR], kinds=list(Kind), limit=5)
    assert rows[0].error == "given up after 10 starts, none of which reached the conversation"


@pytest.mark.spec("S47")
def test_an_unreadable_payload_is_reported_and_the_next_row_runs(database: Database) -> None:
    accept(database)
    execute(database, 'UPDATE {schema}.submissions SET messages = \'{"not": "a list"}\'')
    accept(database, "next")
    worker = introduce(database)
    held = claim(database, worker)
    assert lanes.apply(database, held).outcome is Applied.UNREADABLE
    settlement = lanes.settle(
        database, held, Ending(Status.ERROR, error="bad"), worker=worker, next_claim=uuid4()
    )
    assert isinstance(settlement.next, Claim)
    assert lanes.apply(database, settlement.next).outcome is Applied.APPLIED


@pytest.mark.spec("S10")
def test_unreadable_metadata_reads_as_absent(database: Database) -> None:
    row = accept(database).row
    execute(database, "UPDATE {schema}.submissions SET metadata = '[1, 2]'")
    found = submissions.find_by_uid(database, row.uid)
    assert found is not None
    assert found.submission.metadata is None


def test_a_known_message_id_is_appended_once(database: Database) -> None:
    worker = introduce(database)
    body = json.dumps([{"id": "same", "role": "user", "parts": [{"type": "text", "text": "one"}]}])
    for _ in range(2):
        uid = uuid4()
        identity = Identity(uid, str(uid), False, None)
        submissions.accept(database, Request(A, identity, Kind.SUBMIT, body, b"", None))
    first = claim(database, worker)
    lanes.apply(database, first)
    second = lanes.settle(database, first, done(), worker=worker, next_claim=uuid4()).next
    assert isinstance(second, Claim)
    lanes.apply(database, second)
    assert [message["role"] for message in messages.transcript(database, A)] == ["user", "assistant"]


def test_an_answer_never_replaces_another_turns_message(database: Database) -> None:
    accept(database)
    worker = introduce(database)
    held = claim(database, worker)
    user_id = lanes.apply(database, held).new[0]["id"]
    clash = Ending(Status.COMPLETED, message={"id": user_id, "role": "assistant", "parts": []})
    settlement = lanes.settle(database, held, clash, worker=worker, next_claim=None)
    stored = messages.transcript(database, A)
    assert settlement.row is not None
    assert settlement.row.submission.message_id == stored[1]["id"] != user_id
    assert [message["role"] for message in stored] == ["user", "assistant"]


@pytest.mark.spec("S18", "S19", "S20")
def test_identities_that_disagree_write_nothing(database: Database) -> None:
    accept(database, sid="A", key="K1")
    accept(database, sid="B", key="K2")
    for sid, key in (("C", "K1"), ("A", "K2"), ("A", "K9")):
        with pytest.raises(IdentityConflict, match="do not name one submission"):
            accept(database, sid=sid, key=key)
    assert len(submissions.listing(database, A, statuses=None, kinds=list(Kind), limit=9)) == 2


def test_an_id_without_key_takes_no_key_later(database: Database) -> None:
    accept(database, sid="A")
    again = accept(database, sid="A", key="K")
    assert not again.accepted
    assert again.row.submission.idempotency_key is None
    assert accept(database, key="K").accepted


def test_bells_are_rung_again_and_more_and_more_seldom(database: Database) -> None:
    accept(database)
    assert lanes.due_bells(database, limit=10) == []
    for rings in range(3):
        seconds = 5 * 2**rings
        execute(
            database,
            "UPDATE {schema}.agents SET nudged_at = now() - :age",
            age=timedelta(seconds=seconds - 1),
        )
        assert lanes.due_bells(database, limit=10) == []
        execute(
            database,
            "UPDATE {schema}.agents SET nudged_at = now() - :age",
            age=timedelta(seconds=seconds + 1),
        )
        assert lanes.due_bells(database, limit=10) == [A]
    claim(database, introduce(database))
    execute(database, "UPDATE {schema}.agents SET nudged_at = now() - interval '1 hour'")
    assert lanes.due_bells(database, limit=10) == [], "a lane that runs needs no bell"


def test_idle_lanes_are_let_go_and_wanted_again(database: Database) -> None:
    assert accept(database).announce
    assert not accept(database).announce, "the lane was used a moment ago"
    worker = introduce(database)
    current: Claim | Rest | None = claim(database, worker)
    while isinstance(current, Claim):
        current = lanes.settle(database, current, done(), worker=worker, next_claim=uuid4()).next
    assert lanes.wanted(database, ["T"]) == {A}
    assert lanes.wanted(database, ["Other"]) == set()
    assert lanes.drop_idle(database) == 0
    execute(database, "UPDATE {schema}.agents SET used_at = now() - interval '2 minutes'")
    assert accept(database).announce, "idle for longer than the announce threshold"
    execute(database, "UPDATE {schema}.agents SET used_at = now() - interval '1 hour'")
    assert lanes.drop_idle(database) == 0, "a pending row keeps the queue"
    lanes.settle(database, claim(database, worker), done(), worker=worker, next_claim=uuid4())
    execute(database, "UPDATE {schema}.agents SET used_at = now() - interval '1 hour'")
    assert lanes.drop_idle(database) == 1
    assert lanes.wanted(database, ["T"]) == set()
    assert accept(database).announce
    assert lanes.wanted(database, ["T"]) == {A}


@pytest.mark.spec("S85", "S87", "S88")
def test_listing(database: Database) -> None:
    worker = introduce(database)
    for number in range(3):
        accept(database, str(number))
    for _ in range(2):
        lanes.settle(database, claim(database, worker), done(), worker=worker, next_claim=None)

    def listed(statuses: list[Status] | None, limit: int = 50) -> list[int | None]:
        rows = submissions.listing(database, A, statuses=statuses, kinds=list(Kind), limit=limit)
        return [row.position for row in rows]

    assert listed(None) == [3, 2, 1]
    assert listed([Status.COMPLETED], limit=1) == [2]
    assert listed([Status.COMPLETED, Status.PENDING], limit=2) == [3, 2]
    assert listed([]) == []


def test_survey_shows_depth_and_what_runs(database: Database) -> None:
    accept(database, sid="one")
    accept(database)
    accept(database, agent=Address("T", "b"))
    claim(database, introduce(database))
    shown = {lane.address.name: lane for lane in survey(database, limit=10)}
    assert (shown["a"].pending, shown["a"].running) == (1, "one")
    assert shown["b"].oldest_pending_at is not None


def test_presence(database: Database) -> None:
    living, silent = introduce(database), introduce(database)
    execute(
        database,
        "UPDATE {schema}.workers SET heartbeat_at = now() - interval '2 days' WHERE worker_id = :w",
        w=silent,
    )
    alive = {worker.worker.worker_id: worker.alive for worker in workers.present(database)}
    assert alive == {living: True, silent: False}
    assert workers.forget_dead(database) == 1
