"""Small statistics: figures are medians over rounds, with their spread."""

import statistics
from collections.abc import Sequence

Figures = dict[str, float]
"""What one measurement gave, by name."""

WORST = frozenset({"violations"})
"""Figures of which the worst round counts, not the median one."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share (0…1) of the values lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def percentiles(values: Sequence[float], prefix: str = "") -> Figures:
    """Return the usual three."""
    return {f"{prefix}p{share}": percentile(values, share / 100) for share in (50, 95, 99)}


def summary(rounds: Sequence[Figures]) -> Figures:
    """Return one figure for several rounds, each by itself."""
    return {
        name: (max if name in WORST else statistics.median)(figures[name] for figures in rounds)
        for name in rounds[0]
    }


def spread(values: Sequence[float]) -> float:
    """Return (largest − smallest) / median: how far the rounds lie apart."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0
