"""The lifecycle table: every pair of status and event, and what may be said of a submission."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from think_celery.core.submission import (
    TERMINAL,
    TRANSITIONS,
    Event,
    Kind,
    Receipt,
    Status,
    Submission,
    advance,
)
from think_celery.errors import StateConflict

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def submission(**changes: object) -> Submission:
    values = {"submission_id": "s-1", "agent": "TaskAgent/alice", "kind": Kind.SUBMIT, "request_id": "r-1"}
    return Submission.model_validate(values | {"status": Status.PENDING, "created_at": NOW} | changes)


@given(st.sampled_from(Status), st.sampled_from(Event))
def test_a_step_is_taken_exactly_when_the_table_has_it(status: Status, event: Event) -> None:
    if (status, event) in TRANSITIONS:
        assert advance(status, event) is TRANSITIONS[status, event]
    else:
        with pytest.raises(StateConflict, match=f"a submission that is {status} cannot {event}"):
            advance(status, event)


def test_the_statuses_are_the_six_of_the_specification() -> None:
    assert [str(status) for status in Status] == [
        "pending",
        "running",
        "completed",
        "aborted",
        "skipped",
        "error",
    ]
    assert {"completed", "aborted", "skipped", "error"} == TERMINAL


@given(st.sampled_from(sorted(TERMINAL)), st.sampled_from(Event))
def test_a_terminal_status_never_changes(status: Status, event: Event) -> None:
    with pytest.raises(StateConflict):
        advance(status, event)


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_any_sequence_of_events_ends_at_most_once(events: list[Event]) -> None:
    status, ends = Status.PENDING, 0
    for event in events:
        try:
            status = advance(status, event)
        except StateConflict:
            continue
        ends += status in TERMINAL
    assert ends == (status in TERMINAL)


def test_every_status_can_be_reached_and_every_event_happens_somewhere() -> None:
    reached = {Status.PENDING}
    while more := {to for (source, _), to in TRANSITIONS.items() if source in reached} - reached:
        reached |= more
    assert reached == set(Status)
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_only_a_running_turn_completes_and_only_it_can_go_back() -> None:
    assert [source for source, event in TRANSITIONS if event is Event.COMPLETE] == [Status.RUNNING]
    assert [source for (source, _), to in TRANSITIONS.items() if to is Status.PENDING] == [Status.RUNNING]


@pytest.mark.parametrize("status", Status)
def test_a_record_knows_whether_it_is_terminal(status: Status) -> None:
    assert submission(status=status).is_terminal == (status in TERMINAL)


def test_a_record_is_frozen() -> None:
    with pytest.raises(ValidationError):
        submission().status = Status.ERROR  # type: ignore[misc]


def test_the_json_form_is_camel_case_without_absent_fields() -> None:
    assert submission(idempotency_key="k", position=3).to_json() == {
        "submissionId": "s-1",
        "agent": "TaskAgent/alice",
        "kind": "submit",
        "status": "pending",
        "requestId": "r-1",
        "idempotencyKey": "k",
        "position": 3,
        "attempt": 0,
        "createdAt": "2026-01-02T03:04:05Z",
    }


def test_a_receipt_says_in_addition_whether_this_call_created_the_row() -> None:
    record = submission()
    receipt = Receipt(**record.model_dump(), accepted=False, payload_matches=True)
    assert receipt.to_json() == record.to_json() | {"accepted": False, "payloadMatches": True}
    assert Receipt.model_validate(receipt.to_json()) == receipt
