"""A Celery app that a team had before: late acknowledgement, routes, results, prefetching, a schedule."""

import os
from pathlib import Path

from celery import Celery
from celery.app.defaults import SETTING_KEYS

from think_celery import install

app = Celery(
    "team", broker=os.environ["TEAM_BROKER"], backend=os.environ["TEAM_BROKER"], set_as_current=False
)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_default_queue="team",
    task_routes={"team.*": {"queue": "team"}, "*": {"queue": "catch-all"}},
    task_create_missing_queues=True,
    task_default_rate_limit="1000/s",
    worker_prefetch_multiplier=4,
    worker_concurrency=2,
    result_expires=60,
    beat_schedule={"team.tick": {"task": "team.add", "schedule": 3600.0, "args": (1, 1)}},
)


@app.task(name="team.add", shared=False)
def add(one: int, other: int) -> int:
    return one + other


@app.task(name="team.hold", shared=False)
def hold(path: str) -> str:
    """Occupy a slot until a file exists."""
    import threading

    pause = threading.Event()
    while not Path(path).exists():
        pause.wait(0.02)
    return "released"


before = {name: app.conf[name] for name in SETTING_KEYS}
before["beat_schedule"] = dict(before["beat_schedule"])
install(app)
