"""Work off one lane: claim, run, settle, and go on with the next row until a budget is used up."""

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID, uuid4

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.submission import SUBMITTED
from think_celery.engine import arming, news, responses, status_hooks, webhooks
from think_celery.engine.desk import Place
from think_celery.engine.runtime import Runtime
from think_celery.engine.turn import Memory, Outcome, persist, run_turn
from think_celery.errors import ServiceError, UnknownAgentType
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Busy, Claim, Rest, Settlement
from think_celery.ledger.rows import Row

log = logging.getLogger(__name__)
_RESTS = {
    "idle": "lane is idle",
    "paused": "the agent or its class is paused",
    "early": "the next submission waits for its time",
    "reserved": "the next turn waits for the process that asked for it and runs it itself",
}


class Limit(Protocol):
    """How far one drain goes on with a lane."""

    def spend(self, uid: UUID) -> None:
        """Count the turn of a row, which is about to run."""

    @property
    def is_spent(self) -> bool:
        """True when the lane must be handed over."""


@dataclass(slots=True)
class Budget:
    """How much one bell may work off before other lanes get their turn."""

    turns: int
    seconds: float
    started: float = field(default_factory=time.monotonic)

    def spend(self, uid: UUID) -> None:
        """Count one turn."""
        self.turns -= 1

    @property
    def is_spent(self) -> bool:
        """True when the lane must be handed over."""
        return self.turns <= 0 or time.monotonic() - self.started >= self.seconds


@dataclass(slots=True)
class Errand:
    """Work off a lane for somebody who waits for one of its rows: everything ahead of it, and that row."""

    uid: UUID
    is_spent: bool = False
    """Set when that row runs, or when nobody waits any more."""

    def spend(self, uid: UUID) -> None:
        """Note that a row runs."""
        self.is_spent = self.is_spent or uid == self.uid


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one try at a lane."""

    told: str
    hands_over: bool = False
    """Rows wait, and a bell is to be rung for them: after the lane was put away, or that bell would be
    answered with the promise of another look, which nobody takes."""
    looks_again: bool = True
    """A bell that came meanwhile is worth another try."""


def run_errand(runtime: Runtime, address: Address, errand: Errand) -> None:
    """Work off a lane until the errand is done, or somebody else holds the lane."""
    place = runtime.desk.begin(address)
    # Another thread of this process that has the lane runs this row, too, once its turn is over; but it may
    # be in a status hook that waits for this very row.
    if place is Place.ANSWERED or (place is Place.GUEST and runtime.desk.in_turn(address)):
        return
    rings = True
    try:
        rings = _answer(runtime, address, None, errand).hands_over
    finally:
        if place is Place.OWNER and not runtime.desk.end(address, for_good=False):
            runtime.desk.end(address, for_good=True)
            rings = True  # a bell was answered with the promise to look again
        if rings:
            runtime.ring_lane(address)


def drain(runtime: Runtime, address: Address, *, rang: UUID | None = None) -> str:
    """Answer a bell: try the lane and work off what is pending.

    Whatever id rang, the lane's oldest pending row runs. A lane that somebody else runs is left alone:
    whoever settles goes on. After the budget the lane is released and rung again, so that others get a slot.

    Args:
        rang: The row whose bell it is; told of when there was nothing to run.

    Returns:
        What happened, in words that Flower shows.
    """
    runtime.consumed.set()
    try:
        registry.get(address.type_name)
    except UnknownAgentType as error:
        log.warning("agent.unknown agent=%s error=%s", address, error)
        return f"left pending: class {address.type_name} is not loaded in this worker"
    place = runtime.desk.begin(address)
    if place is Place.ANSWERED:
        return "busy: this worker runs this lane and looks again"
    done = _own(runtime, address, rang) if place is Place.OWNER else _try(runtime, address, rang)
    if done.hands_over:
        runtime.ring_lane(address)
    return done.told


def _own(runtime: Runtime, address: Address, rang: UUID | None) -> Done:
    """Work off a lane that no other thread of this process has; once more when a bell asked for it."""
    is_away = False
    try:
        while not is_away:
            done = _try(runtime, address, rang)
            is_away = runtime.desk.end(address, for_good=done.hands_over or not done.looks_again)
        return done
    finally:
        if not is_away:
            runtime.desk.end(address, for_good=True)


def _try(runtime: Runtime, address: Address, rang: UUID | None) -> Done:
    return _answer(
        runtime, address, rang, Budget(runtime.settings.drain_turns, runtime.settings.drain_seconds)
    )


def _answer(runtime: Runtime, address: Address, rang: UUID | None, limit: Limit) -> Done:
    """Try the lane once and work it off."""
    try:
        claim = _claim(runtime, address, rang)
    except ServiceError as error:
        log.warning("lane.claim_failed agent=%s error=%s", address, error)
        return Done("ledger unavailable: the sweeper rings again", looks_again=False)
    if not isinstance(claim, Claim):
        webhooks.poke(runtime)  # a bell with nothing to run may come from a producer that ended a row
    if isinstance(claim, Busy):
        if claim.hooks_due:
            status_hooks.deliver(runtime, address)
        if claim.responses_due:
            responses.wake(runtime, address)
        return Done(f"busy: worker {claim.worker} runs this lane and goes on")
    if isinstance(claim, Claim):
        arming.wake(runtime, address, claim.armed)
    return _work_off(runtime, address, claim, limit)


def _work_off(runtime: Runtime, address: Address, claim: Claim | Rest, limit: Limit) -> Done:
    counts: Counter[str] = Counter()
    memory = Memory()
    current = claim
    while True:
        _follow_up(runtime, address, current, counts)
        if isinstance(current, Rest):
            return Done(_told(counts, _rest(current)))
        limit.spend(current.row.uid)
        runtime.desk.turn(address)
        settlement = _one(runtime, current, limit, memory)
        if settlement is None:
            return Done(_told(counts, "lost the lane"))
        if settlement.row is not None:
            counts[settlement.row.submission.status] += 1
        if settlement.next is None and _is_over(runtime, limit):
            end = "handed over" if settlement.more else _RESTS["idle"]
            return Done(_told(counts, end), hands_over=settlement.more)
        following = settlement.next or _claim(runtime, address)
        if isinstance(following, Busy):
            return Done(_told(counts, "another worker goes on"))
        current = following


def _follow_up(runtime: Runtime, address: Address, claim: Claim | Rest, counts: "Counter[str]") -> None:
    """Make known what the claim itself ended, and call the status hooks that wait for a worker."""
    for end in claim.ended:
        counts[end.row.submission.status] += 1
    news.ended(runtime, claim.ended)
    if isinstance(claim, Claim) and claim.row.hook_due:
        status_hooks.tell_accepted(runtime, claim.row)
    if claim.hooks_due or any(end.row.hook_due for end in claim.ended):
        status_hooks.deliver(runtime, address)
    if claim.responses_due:
        responses.wake(runtime, address)


def _claim(runtime: Runtime, address: Address, rang: UUID | None = None) -> Claim | Rest | Busy:
    return lanes.claim(runtime.database, address, worker=runtime.worker_id, claim_id=uuid4(), rang=rang)


def _is_over(runtime: Runtime, limit: Limit) -> bool:
    # Who waits inside a turn is served although the process takes no further bells: that turn is to end, too.
    return limit.is_spent or (runtime.draining.is_set() and not isinstance(limit, Errand))


def _one(runtime: Runtime, claim: Claim, limit: Limit, memory: Memory) -> Settlement | None:
    _log("submission.claimed", claim)
    status_hooks.tell(runtime, claim.row.address, claim.row.submission)
    outcome = run_turn(runtime, claim, memory)
    if outcome is None:
        _log("submission.lost", claim, level=logging.WARNING)
        return None
    # With a status hook the lane is released first: the next turn starts after the hook heard of this end.
    is_hooked = status_hooks.is_hooked(claim.row.address)
    is_told = is_hooked and claim.row.submission.kind in SUBMITTED
    following = None if _is_over(runtime, limit) or is_told else uuid4()
    # Nor are the next turn's messages applied before its hook heard of its start.
    read = None if is_hooked else (memory.last, memory.rewrites)
    settlement = _settle(runtime, claim, outcome, next_claim=following, read=read)
    runtime.desk.turn_over(claim.row.address)
    if settlement.row is None:
        runtime.loop.send_off(_forget(runtime, claim.row.uid, outcome))
        responses.follow(runtime, claim.row, outcome, deleted=True)
    if not settlement.settled and not isinstance(settlement.next, Claim):
        _log("submission.lost", claim, level=logging.WARNING)
        runtime.calls.lose(claim.row.uid)
        return None
    if settlement.row is not None:
        _tell(runtime, settlement.row, outcome)
    return settlement


def _settle(
    runtime: Runtime,
    claim: Claim,
    outcome: Outcome,
    *,
    next_claim: UUID | None,
    read: tuple[int, int] | None,
) -> Settlement:
    return persist(
        runtime,
        lambda: lanes.settle(
            runtime.database,
            claim,
            outcome.ending,
            worker=runtime.worker_id,
            next_claim=next_claim,
            read=read,
        ),
    )


def _tell(runtime: Runtime, row: Row, outcome: Outcome) -> None:
    """Say it after the commit: end the stream, call the hooks, wake the waiters; the ledger is done."""
    now, run = row.submission, outcome.run
    log.info("submission.settled agent=%s submission=%s status=%s", now.agent, now.submission_id, now.status)
    if run is None:
        news.ended_elsewhere(runtime, row)
    else:
        news.ended_here(runtime, row, run.writer)
    if row.hook_due:
        status_hooks.deliver(runtime, row.address)
    responses.follow(runtime, row, outcome)


async def _forget(runtime: Runtime, uid: UUID, outcome: Outcome) -> None:
    """The row was deleted while its turn was stopping: nothing that was said since may stay behind."""
    if outcome.run is not None:
        await outcome.run.writer.close()
    await runtime.streams.forget([uid])


def _log(event: str, claim: Claim, *, level: int = logging.INFO) -> None:
    now = claim.row.submission
    log.log(level, "%s agent=%s submission=%s attempt=%d", event, now.agent, now.submission_id, now.attempt)


def _rest(rest: Rest) -> str:
    if (row := rest.rang) is None:
        return _RESTS[rest.reason]
    reason = "" if row.error is None else f": {row.error}"
    return f"{_RESTS[rest.reason]}; submission {row.submission_id} is {row.status}{reason}"


def _told(counts: "Counter[str]", end: str) -> str:
    ran = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing ran"
    return f"{ran}; {end}"
