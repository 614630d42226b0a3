"""The base of every value that enters or leaves the process as JSON."""

from datetime import UTC
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

Instant = Annotated[AwareDatetime, AfterValidator(lambda value: value.astimezone(UTC))]
"""A point in time with its offset, kept in UTC."""


class Record(BaseModel):
    """A frozen value with snake_case attributes and camelCase JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: camelCase keys, ISO-8601 UTC times, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
