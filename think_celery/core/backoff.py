"""How long to wait before trying again."""


def delay_seconds(tries: int, *, base: float, limit: float) -> float:
    """Return the wait after a number of failures: doubling, bounded.

    Args:
        tries: Failures so far, from 1.
        base: Seconds after the first failure.
        limit: Longest wait in seconds.

    >>> [delay_seconds(n, base=0.5, limit=3.0) for n in (1, 2, 3, 4, 50)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    return float(min(limit, base * 2.0 ** min(tries - 1, 30)))
