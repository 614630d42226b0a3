"""A claim beside a cancel that did not wait for it."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from sqlalchemy import text

from tests.ledger.test_lanes import A, accept, database, introduce
from think_celery.ledger import lanes
from think_celery.ledger.database import Database
from think_celery.ledger.lanes import Claim, Rest
from think_celery.testing import eventually

__all__ = ["database"]


def test_a_claim_passes_over_a_row_that_ends_under_its_hands(database: Database) -> None:
    """A cancel that comes with the agent's very first row may find no lane to lock, and yet the row."""
    worker = introduce(database)
    first, second = accept(database), accept(database)
    ending = text(
        database.sql(
            "UPDATE {schema}.submissions SET status = 'aborted', completed_at = now() WHERE uid = :uid"
        )
    )
    blocked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :what"
    )
    with ThreadPoolExecutor() as threads, database.engine.connect() as connection:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            connection.execute(ending, {"uid": first.row.uid})
            call = threads.submit(lanes.claim, database, A, worker=worker, claim_id=uuid4())
            what = {"what": f"%{database.schema}.claim(%"}
            eventually(lambda: database.run(lambda other: other.execute(blocked, what).scalar_one()))
        claim = call.result(10)
    assert isinstance(claim, Claim)
    assert claim.row.uid == second.row.uid
    assert isinstance(lanes.claim(database, A, worker=worker, claim_id=uuid4()), lanes.Busy | Rest)
