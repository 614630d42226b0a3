"""Raw Celery, as its documentation shows it: defaults, one task without and one with a result."""

import time

from celery import Celery, Task

from bench import record

JOB, ANSWER = "bench.job", "bench.answer"


def build(broker: str, backend: str) -> Celery:
    """Return the app; two settings differ from the defaults, neither on the measured path."""
    app = Celery("floor", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
    app.task(job, name=JOB, ignore_result=True)
    app.task(answer, name=ANSWER)
    return app


def job(body: dict[str, str | int]) -> None:
    """Record one body and return nothing that anybody waits for."""
    record.note(str(body["key"]), int(body["number"]), time.monotonic_ns())


def answer(body: dict[str, str | int]) -> int:
    """Record one body and return its number through the result backend."""
    record.note(str(body["key"]), int(body["number"]), time.monotonic_ns())
    return int(body["number"])


def task_of(app: Celery, name: str) -> Task:
    """Return one of the two tasks."""
    return app.tasks[name]
