"""One line of `doctor`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    check: str
    level: Literal["ok", "warn", "fail"]
    text: str
