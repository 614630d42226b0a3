"""Producers: three ways to hand in a job, behind one call."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid4

import psycopg

from bench import floor
from bench.site import FLOOR_TABLE, Site
from think_celery import AgentHandle
from think_celery.engine.runtime import Runtime
from think_celery.worker.app import build_app
from think_celery.worker.publisher import CeleryPublisher

TEXT = "Please summarise the attached report and tell me which three numbers moved the most. " * 2
AGENT = "NoOp"

Submit = Callable[[str, int], object]
"""Hand in one job: its key (the agent's name) and its number."""
Producer = Callable[[Site], AbstractContextManager[Submit]]


@contextmanager
def ours(site: Site) -> Iterator[Submit]:
    """Accept a submission durably and ring the bell."""
    with runtime(site) as connected:
        yield lambda key, number: AgentHandle(AGENT, key, runtime=connected).submit_messages(
            f"{number} {TEXT}"
        )


@contextmanager
def raw_celery(site: Site) -> Iterator[Submit]:
    """Publish a task and trust the broker."""
    task = floor.task_of(floor.build(site.floor_broker, site.floor_backend), floor.JOB)
    yield lambda key, number: task.apply_async((body(key, number),))


@contextmanager
def insert_then_celery(site: Site) -> Iterator[Submit]:
    """Commit a row, then publish a task: what an application does by hand to have both."""
    with psycopg.connect(site.database_url) as connection, raw_celery(site) as publish:

        def submit(key: str, number: int) -> None:
            connection.execute(
                f"INSERT INTO {FLOOR_TABLE} (key, number, body) VALUES (%s, %s, %s)",
                (key, number, json.dumps(body(key, number))),
            )
            connection.commit()
            publish(key, number)

        yield submit


@contextmanager
def runtime(site: Site) -> Iterator[Runtime]:
    """Connect a producer process of think-celery."""
    connected = Runtime(site.settings, CeleryPublisher(build_app(site.settings), site.settings))
    try:
        yield connected
    finally:
        connected.close()


def body(key: str, number: int) -> dict[str, str | int]:
    """Return the floors' payload, about as long as ours."""
    return {"id": str(uuid4()), "key": key, "number": number, "role": "user", "content": f"{number} {TEXT}"}


def key_of(number: int, keys: int) -> str:
    """Return the agent of a job: the jobs go round."""
    return f"agent-{number % keys}"


def submit_all(submit: Submit, jobs: int, keys: int) -> list[float]:
    """Hand in jobs one after the other, and return how many milliseconds each took."""
    took = []
    for number in range(jobs):
        begun = time.perf_counter()
        submit(key_of(number, keys), number)
        took.append((time.perf_counter() - begun) * 1000)
    return took


def warm_up(submit: Submit, jobs: int, keys: int) -> None:
    """Hand in jobs that do not count."""
    for number in range(jobs):
        submit(key_of(number, keys), -1 - number)
