"""Ringing the bell: announce an agent's queue and publish its nudge, within a deadline and never in the way.

What carries the message comes in from outside, so this module knows no Celery.
"""

import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from think_celery.core.address import Address
from think_celery.core.routing import queue_name
from think_celery.settings import Settings

log = logging.getLogger(__name__)

RUN_TURN = "think.run_turn"
RUN_OCCURRENCE = "think.run_occurrence"


class Publisher(Protocol):
    """Carries task messages to the workers; each call is bounded and raises when it fails."""

    def publish(self, name: str, args: Sequence[Any], *, task_id: str, queue: str) -> None:
        """Publish one task message."""

    def revoke(self, task_ids: Sequence[str]) -> None:
        """Tell every worker to skip these messages."""

    def close(self) -> None:
        """Give its connections back."""


class Announces(Protocol):
    """Tells the workers which queue to consume."""

    def announce(self, queue: str) -> object:
        """Publish the queue's name within `publish_timeout`, or raise."""


class Dispatcher:
    """Rings the bells of one process.

    Args:
        publisher: Carries the messages.
        settings: `publish_timeout` bounds one nudge; a failure silences the next ones for `publish_pause`.
        announcer: The way to the workers' queue subscribers.
    """

    def __init__(self, publisher: Publisher, settings: Settings, announcer: Announces) -> None:
        self._publisher = publisher
        self._settings = settings
        self._announcer = announcer
        self._broker = _Breaker(settings.publish_pause)
        self._listeners = _Breaker(settings.publish_pause)

    def nudge(self, agent: Address, uid: UUID | None, *, task_id: str, announce: bool) -> bool:
        """Tell some worker that an agent has work; losing or repeating this is harmless.

        Args:
            agent: Whose lane to look at.
            uid: The row that rings; None for a nudge that only names the lane.
            task_id: Celery's id of the message; never one that was used before.
            announce: Tell the workers first to consume the agent's queue.

        Returns:
            True when everything was sent; False when something failed, or failed lately: the sweeper rings
            again. Never raises, and takes at most about 1.5 times `publish_timeout`.
        """
        args = (agent.type_name, agent.name, None if uid is None else str(uid))
        return self._ring(RUN_TURN, agent, args, task_id=task_id, announce=announce)

    def nudge_occurrence(self, agent: Address, task: str, scheduled_for: datetime, *, task_id: str) -> bool:
        """Tell some worker that an occurrence of an agent's task is due; otherwise like `nudge`."""
        args = (agent.type_name, agent.name, task, scheduled_for.isoformat())
        return self._ring(RUN_OCCURRENCE, agent, args, task_id=task_id, announce=True)

    def revoke(self, task_ids: Sequence[str]) -> bool:
        """Void bells that have not been answered yet; what counts is the ledger. Never raises."""
        if not self._broker.passes():
            return False
        try:
            self._publisher.revoke(task_ids)
        except Exception as error:  # noqa: BLE001 - a revoke only spares a worker one look at the ledger
            self._broker.trip(error)
            return False
        self._broker.mend()
        return True

    def close(self) -> None:
        """Close the publishing connections; a later nudge opens them again."""
        self._publisher.close()

    def _ring(self, name: str, agent: Address, args: Sequence[Any], *, task_id: str, announce: bool) -> bool:
        end = time.monotonic() + self._settings.publish_timeout
        queue = queue_name(agent, self._settings.queue_scope)
        heard = not announce or self._announce(queue)
        if time.monotonic() >= end:
            self._broker.trip()
        return self._send(name, queue, args, task_id) and heard

    def _announce(self, queue: str) -> bool:
        if not self._listeners.passes():
            return False
        try:
            self._announcer.announce(queue)
        except Exception as error:  # noqa: BLE001 - the row is accepted, a lost bell must not fail the call
            self._listeners.trip(error)
            return False
        self._listeners.mend()
        return True

    def _send(self, name: str, queue: str, args: Sequence[Any], task_id: str) -> bool:
        if not self._broker.passes():
            return False
        try:
            self._publisher.publish(name, args, task_id=task_id, queue=queue)
        except Exception as error:  # noqa: BLE001 - as above
            self._broker.trip(error)
            return False
        self._broker.mend()
        return True


class _Breaker:
    """Skips a service for a while after a failure; then one caller at a time tries it again."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._until: float | None = None
        self._lock = threading.Lock()

    def passes(self) -> bool:
        if self._until is None:
            return True
        with self._lock:
            now = time.monotonic()
            if self._until is not None and now < self._until:
                return False
            self._until = now + self._pause  # this caller probes; the others go on skipping meanwhile
            return True

    def trip(self, error: Exception | None = None) -> None:
        with self._lock:
            now = time.monotonic()
            news = self._until is None or now >= self._until
            self._until = now + self._pause
        if error is not None:
            level = logging.WARNING if news else logging.DEBUG
            log.log(level, "nudge.failed error=%s: %s pause=%gs", type(error).__name__, error, self._pause)

    def mend(self) -> None:
        if self._until is not None:
            self._until = None
            log.info("nudge.recovered")
