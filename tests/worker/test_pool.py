"""Pools: which are refused, and that a freed slot of the threads pool is used at once."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from celery.concurrency import prefork, solo, thread

from tests.processes import ROOT, environment
from think_celery.errors import InvalidSettings
from think_celery.settings import Settings
from think_celery.testing import eventually
from think_celery.worker.pool import SoloPool, TaskPool, kind_of, suitable

BELLS = '''
"""Twelve jobs of 20 ms on one slot of our threads pool; no events, which would wake the hub as well."""
import sys, time
from celery import Celery
from think_celery.worker.pool import suitable

app = Celery("bells", broker=sys.argv[1], set_as_current=False)
app.conf.update(worker_disable_prefetch=True, worker_prefetch_multiplier=1, task_ignore_result=True)
done = []

@app.task(name="job", shared=False)
def job() -> None:
    time.sleep(0.02)
    done.append(time.monotonic())
    if len(done) == 12:
        print(f"took {done[-1] - done[0]:.3f}", flush=True, file=sys.__stdout__)

for _ in range(12):
    job.delay()
app.Worker(
    pool_cls=suitable("threads") if sys.argv[2] == "ours" else "threads", concurrency=1, loglevel="ERROR",
    without_mingle=True, without_gossip=True,
).start()
'''


def took(settings: Settings, folder: Path, pool: str) -> float:
    script = folder / "bells.py"
    script.write_text(BELLS)
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(script), settings.broker_url.get_secret_value(), pool],
            env=environment(settings), cwd=ROOT, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        eventually(lambda: "took" in log.read_text(), timeout=40)
        return float(log.read_text().partition("took ")[2].split()[0])
    finally:
        process.kill()
        process.wait(10)


def test_a_freed_slot_asks_for_the_next_job_at_once(settings: Settings, tmp_path: Path) -> None:
    assert took(settings, tmp_path, "ours") < 2.0
    # If this fails, Celery has learnt it and the subclass can go.
    assert took(settings, tmp_path, "celery's") > 5.0


@pytest.mark.parametrize("pool", ["gevent", "eventlet", "celery.concurrency.gevent:TaskPool"])
def test_green_threads_are_refused(pool: str) -> None:
    with pytest.raises(InvalidSettings, match=r"pool cannot run turns.*-P threads"):
        suitable(pool)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_worker_with_green_threads_does_not_start(settings: Settings, pool: str) -> None:
    script = f"from workers import app; app.Worker(pool_cls={pool!r})"
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(settings), cwd=ROOT, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith(f"think-celery: the {pool} pool cannot run turns")
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        ("threads", "threads"),
        (thread.TaskPool, "threads"),
        (TaskPool, "threads"),
        ("think_celery.worker.pool:TaskPool", "threads"),
        ("prefork", "prefork"),
        ("processes", "prefork"),
        (prefork.TaskPool, "prefork"),
        ("solo", "solo"),
        (solo.TaskPool, "solo"),
    ],
)
def test_pools_are_known_by_plain_names(pool: object, kind: str) -> None:
    assert kind_of(pool) == kind
    assert kind_of(suitable(pool)) == kind


def test_celerys_own_pools_are_replaced_and_others_are_not() -> None:
    assert suitable("threads") is suitable(thread.TaskPool) is suitable(TaskPool) is TaskPool
    assert suitable("solo") is suitable(solo.TaskPool) is SoloPool
    assert suitable(prefork.TaskPool) is prefork.TaskPool

    class Custom(thread.TaskPool):
        pass

    assert suitable(Custom) is Custom
