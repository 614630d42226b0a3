"""An agent module that cannot be imported."""

HALF = 1 / 0
