"""Retention: off by default; what is older goes, what still waits or runs never does."""

from collections.abc import Callable

from sqlalchemy import text

from tests import agents  # noqa: F401  (registers the classes)
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.engine.drain import drain
from think_celery.engine.prune import prune
from think_celery.engine.runtime import Runtime
from think_celery.worker.beat import PRUNE, beat_entries


def test_only_old_ended_submissions_go(make_runtime: Callable[..., Runtime], agent: Address) -> None:
    runtime = make_runtime(retention_days=7.0)
    handle = AgentHandle(agent.type_name, agent.name, runtime=runtime)
    for number in range(3):
        handle.submit_messages(f"say {number}")
    drain(runtime, agent)
    waiting = handle.submit_messages("say later")
    statement = text(
        runtime.database.sql(
            "UPDATE {schema}.submissions SET created_at = created_at - interval '8 days',"
            " completed_at = completed_at - interval '8 days' WHERE position IN (1, 4)"
        )
    )
    runtime.database.run(lambda connection: connection.execute(statement))
    assert prune(make_runtime()) == 0, "off by default"
    assert prune(runtime) == 1
    assert [row.position for row in handle.list_submissions()] == [4, 3, 2]
    assert handle.inspect_submission(waiting.submission_id) is not None
    assert len(handle.get_messages()) == 6, "messages stay"


def test_beat_prunes_only_with_a_retention(make_runtime: Callable[..., Runtime]) -> None:
    assert PRUNE not in beat_entries(make_runtime().settings)
    assert PRUNE in beat_entries(make_runtime(retention_days=30.0).settings)
