"""How tests wait for what happens in other threads and processes, at no fixed moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds after which something that has to happen is taken not to happen. No test measures time.
SOON = 30


def until(
    condition: Callable[[], T], what: str | Callable[[], str] = "it happens", seconds: float = SOON
) -> T:
    """Wait until something is so; return what the condition returned then.

    ``what`` is what was to happen, or, if it is called, says what is there instead.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {said}")
        time.sleep(0.005)
    return found
