"""The only home of Celery: apps, tasks, the queue subscriber, and what a worker process keeps running."""

from think_celery.worker.app import build_app, default_app, install

__all__ = ["build_app", "default_app", "install"]
