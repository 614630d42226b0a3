"""What a workload is: contenders that are measured alike, the figure they are compared by, and its goals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.figure import Figures, spread, summary
from bench.site import Site


class Role(StrEnum):
    """What a contender's figures are for."""

    OURS = "ours"
    FLOOR = "floor"
    """What ours is divided by."""
    INFO = "info"
    """Shown only; measured in one round."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the job.

    Attributes:
        measure: Takes a fresh site and the number of jobs.
    """

    name: str
    role: Role
    measure: Callable[[Site, int], Figures]
    pool: str = "threads"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of ours, or `ratio`, that must lie on one side of a limit."""

    figure: str
    words: str
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        """True when the value lies within the limits."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that the table shows as well."""

    figure: str
    heading: str
    digits: int = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """One question and how it is asked.

    Attributes:
        key: Name on the command line and in the results.
        figure: What contenders are compared by.
        jobs: Of a full run and of a quick one.
    """

    key: str
    title: str
    figure: str
    unit: str
    lower_is_better: bool
    jobs: tuple[int, int]
    contenders: tuple[Contender, ...]
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...]
    rounds: int | None = None
    """Fewer than the run's, where one round says enough."""


@dataclass(frozen=True, slots=True)
class Result:
    """What all rounds of a workload gave, by contender."""

    workload: Workload
    jobs: int
    rounds: dict[str, list[Figures]]

    def of(self, contender: Contender) -> Figures:
        """Return the contender's figures over all its rounds."""
        return summary(self.rounds[contender.name])

    def first(self, role: Role) -> Contender:
        """Return the contender with this role."""
        return next(contender for contender in self.workload.contenders if contender.role is role)

    def value(self, role: Role) -> float:
        """Return the compared figure of ours or of the floor."""
        return self.of(self.first(role))[self.workload.figure]

    def spread(self, role: Role) -> float:
        """Return how far the rounds lie apart, as a share of their median."""
        rounds: Sequence[Figures] = self.rounds[self.first(role).name]
        return spread([figures[self.workload.figure] for figures in rounds])

    @property
    def ratio(self) -> float:
        """Ours divided by the floor."""
        return self.value(Role.OURS) / self.value(Role.FLOOR)

    def reached(self, goal: Goal) -> float:
        """Return the value that a goal is about."""
        return self.ratio if goal.figure == "ratio" else self.of(self.first(Role.OURS))[goal.figure]
