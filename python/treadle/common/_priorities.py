"""Priorities that users give, which may be fractions, as the whole numbers that the scheduler compares."""

from __future__ import annotations

import warnings
from typing import Any

from treadle.common._numbers import whole

__all__ = ["rank", "ranked"]

# What is nearer to 0 than the bound is told apart in steps of a millionth, the rest in whole numbers.
_BOUND = 256
_STEPS = 2**20
# The scheduler's numbers have 32 bits.
_EXTRA = _BOUND * (_STEPS - 1)
_HIGHEST = 2**31 - 2 - _EXTRA


def rank(priority: Any) -> int:
    """Return the number that stands for a priority: 0 for 0, a higher one for a higher one.

    Raises
    ------
    ValueError
        The priority is no number, or out of range.
    """
    number = whole("priority", priority, -_HIGHEST, _HIGHEST)
    if abs(number) < _BOUND:
        value = float(priority)
        # What is not 0 is not the same as 0.
        return round(value * _STEPS) or (value > 0) - (value < 0)
    if number != float(priority):
        warnings.warn(
            f"treadle: priority={priority} counts as {number}: fractions count below {_BOUND} only",
            UserWarning,
            stacklevel=2,
        )
    return number + (_EXTRA if number > 0 else -_EXTRA)


def ranked(number: int) -> float:
    """Return the priority that a number stands for."""
    if abs(number) < _BOUND * _STEPS:
        priority = number / _STEPS
        return int(priority) if priority.is_integer() else priority
    return number - (_EXTRA if number > 0 else -_EXTRA)
