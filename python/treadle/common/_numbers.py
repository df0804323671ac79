"""Numbers that users give, checked: an error names the option."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

__all__ = ["MOST_THREADS", "MOST_WORKERS", "amounts", "integer", "whole"]

# Threads of a worker, and workers that one call starts: more of them are a mistake.
MOST_THREADS = 2**16
MOST_WORKERS = 2**20


def whole(option: str, value: Any, least: int, most: int) -> int:
    """Return a whole number, of a fraction what is before the point.

    Raises
    ------
    ValueError
        It is none, or not one of those from ``least`` to ``most``.
    """
    try:
        number = int(value)
    except (OverflowError, ValueError):
        number = None
    if number is None or not least <= number <= most:
        raise ValueError(f"{option}={value!r:.100}: give a whole number from {least} to {most}")
    return number


def integer(option: str, value: Any, least: int, most: int) -> int:
    """Return an integer.

    Raises
    ------
    TypeError
        It is none.
    ValueError
        It is not one of those from ``least`` to ``most``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{option}={value!r:.100}: give an integer from {least} to {most}"
        ) from None
    if not least <= number <= most:
        raise ValueError(f"{option}={value!r:.100}: give an integer from {least} to {most}")
    return number


def amounts(resources: Mapping[Any, Any]) -> dict[str, float]:
    """Return abstract resources as the scheduler counts them.

    Raises
    ------
    TypeError
        They are no mapping.
    ValueError
        An amount is no number, is infinite, or below 0: a task would wait for ever.
    """
    if not isinstance(resources, Mapping):
        raise TypeError(f"resources= must be a dict, not {type(resources).__name__}")
    return {str(name): _amount(name, amount) for name, amount in resources.items()}


def _amount(name: Any, given: Any) -> float:
    try:
        amount = float(given)
    except (OverflowError, TypeError, ValueError):
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ValueError(f"resources={{{name!r}: {given!r:.100}}}: give a finite number, 0 or more")
    return amount
