"""From rows of the ledger to the records that the rest of the program uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, overload
from uuid import UUID

from think_celery.core.address import Address
from think_celery.core.submission import Status, Submission

_PUBLIC = tuple(name for name in Submission.model_fields if name not in {"agent", "metadata", "usage"})


@dataclass(frozen=True, slots=True)
class Row:
    """A submission with what only the engine needs to know of it."""

    submission: Submission
    address: Address
    uid: UUID
    root_id: UUID
    """The first turn of the chain that led to this one."""
    nudges: int
    generation: int
    hook_due: bool
    response_due: bool
    has_webhook: bool
    """Its end is reported outside; where to is nobody's business but the outbox'."""
    traceparent: str | None
    messages_applied_at: datetime | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A row that a step has just ended."""

    row: Row
    was: Status
    """`pending` or `running`."""


def submission_of(row: Mapping[Any, Any]) -> Submission:
    """Return the public record; metadata that is not an object reads as absent (S 1.1)."""
    metadata, usage = row["metadata"], row["usage"]
    values = {name: row[name] for name in _PUBLIC}
    values["agent"] = f"{row['agent_type']}/{row['agent_name']}"
    values["metadata"] = metadata if isinstance(metadata, dict) else None
    values["usage"] = usage if isinstance(usage, dict) else None
    return Submission.model_validate(values)


def row_of(row: Mapping[Any, Any]) -> Row:
    """Return the engine's view of a row, from a query or from the JSON of a step."""
    return Row(
        submission=submission_of(row),
        address=Address(row["agent_type"], row["agent_name"]),
        uid=UUID(str(row["uid"])),
        root_id=UUID(str(row["root_id"] or row["uid"])),
        nudges=row["nudges"],
        generation=row["generation"],
        hook_due=row["hook_due"],
        response_due=row["response_due"],
        has_webhook=bool(row.get("has_webhook", row.get("webhook_url"))),
        traceparent=row["traceparent"],
        messages_applied_at=instant(row["messages_applied_at"]),
    )


def ended_of(answer: Mapping[str, Any]) -> Ended:
    """Return an ended row from the JSON of a step."""
    return Ended(row_of(answer["submission"]), Status(answer["was"]))


@overload
def instant(value: None) -> None: ...
@overload
def instant(value: datetime | str) -> datetime: ...
def instant(value: datetime | str | None) -> datetime | None:
    """Return an instant in UTC, whatever the session's time zone and the way it came."""
    if value is None:
        return None
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).astimezone(UTC)
