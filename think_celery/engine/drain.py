"""Work off one lane: claim, run, settle, and go on with the next row until a budget is used up."""

import logging
import time
from dataclasses import dataclass, field
from uuid import uuid4

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.core.turn import ChatResponse
from think_celery.engine import hooks
from think_celery.engine.runtime import Runtime
from think_celery.engine.turn import Outcome, persist, run_turn
from think_celery.errors import ServiceError, UnknownAgentType
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Busy, Claim, Settlement

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Budget:
    """How much one bell may work off before other lanes get their turn."""

    turns: int
    seconds: float
    started: float = field(default_factory=time.monotonic)

    def spend(self) -> None:
        """Count one turn."""
        self.turns -= 1

    @property
    def is_spent(self) -> bool:
        """True when the lane must be handed over."""
        return self.turns <= 0 or time.monotonic() - self.started >= self.seconds


def drain(runtime: Runtime, address: Address) -> str:
    """Answer a bell: try the lane and work off what is pending.

    Whatever id rang, the lane's oldest pending row runs. A lane that somebody else runs is left alone:
    whoever settles goes on. After the budget the lane is released and rung again, so that others get a slot.

    Returns:
        What happened, in words that Flower shows.
    """
    runtime.consumed.set()
    try:
        registry.get(address.type_name)
    except UnknownAgentType as error:
        log.warning("agent.unknown agent=%s error=%s", address, error)
        return f"left pending: class {address.type_name} is not loaded in this worker"
    try:
        claim = lanes.claim(runtime.database, address, worker=runtime.worker_id, claim_id=uuid4())
    except ServiceError as error:
        log.warning("lane.claim_failed agent=%s error=%s", address, error)
        return "ledger unavailable: the sweeper rings again"
    if isinstance(claim, Busy):
        return f"busy: worker {claim.worker} runs this lane and goes on"
    return "idle: nothing is pending" if claim is None else _work_off(runtime, claim)


def _work_off(runtime: Runtime, claim: Claim) -> str:
    budget = Budget(runtime.settings.drain_turns, runtime.settings.drain_seconds)
    counts: dict[str, int] = {}
    current: Claim | None = claim
    while current is not None:
        budget.spend()
        settlement = _one(runtime, current, budget)
        if settlement is None:
            return _told(counts, "lost the lane")
        if settlement.row is not None:
            status = settlement.row.submission.status
            counts[status] = counts.get(status, 0) + 1
        if settlement.more:
            hand_over(runtime, claim.row.address)
            return _told(counts, "handed over")
        current = settlement.next
    return _told(counts, "lane is idle")


def _one(runtime: Runtime, claim: Claim, budget: Budget) -> Settlement | None:
    log.info(
        "submission.claimed agent=%s submission=%s", claim.row.address, claim.row.submission.submission_id
    )
    _publish_status(runtime, claim.row.address, claim.row.submission.submission_id, Status.RUNNING)
    outcome = run_turn(runtime, claim)
    if outcome is None:
        log.warning(
            "submission.lost agent=%s submission=%s", claim.row.address, claim.row.submission.submission_id
        )
        return None
    next_claim = None if budget.is_spent or runtime.draining.is_set() else uuid4()
    settlement = persist(
        runtime,
        lambda: lanes.settle(
            runtime.database, claim, outcome.ending, worker=runtime.worker_id, next_claim=next_claim
        ),
    )
    if not settlement.settled and settlement.next is None:
        log.warning(
            "submission.lost agent=%s submission=%s", claim.row.address, claim.row.submission.submission_id
        )
        return None
    _tell(runtime, claim, outcome, settlement)
    return settlement


def _tell(runtime: Runtime, claim: Claim, outcome: Outcome, settlement: Settlement) -> None:
    """Say it after the commit: end the stream, wake the waiters, call the hook; the ledger is done."""
    if settlement.row is None:
        return
    submission = settlement.row.submission
    log.info(
        "submission.settled agent=%s submission=%s status=%s",
        submission.agent, submission.submission_id, submission.status,
    )  # fmt: skip
    if outcome.run is not None:
        writer = outcome.run.writer
        runtime.loop.send_off(writer.end(submission.status, submission.error, submission.message_id))
    _publish_status(runtime, claim.row.address, submission.submission_id, submission.status)
    if outcome.run is not None and hooks.overrides(outcome.run.agent, "on_chat_response"):
        response = ChatResponse(submission, outcome.ending.message)
        runtime.loop.run(hooks.responded(outcome.run.agent, response))


def _publish_status(runtime: Runtime, address: Address, submission_id: str, status: Status) -> None:
    payload = {"submissionId": submission_id, "status": status.value}
    runtime.loop.send_off(runtime.streams.publish_status(address, payload))


def hand_over(runtime: Runtime, address: Address) -> None:
    """Ring the bell of a lane that was released with rows still waiting."""
    runtime.dispatcher.nudge(address, None, task_id=str(uuid4()), announce=True)


def _told(counts: dict[str, int], end: str) -> str:
    ran = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing ran"
    return f"{ran}; {end}"
