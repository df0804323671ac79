"""What tests of views share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Seconds within which everything happens here.
SOON = 60.0


def until(true: Callable[[], Any], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, f"not within {SOON} s: {what}"
        time.sleep(0.01)


def endless(view: Any) -> Any:
    """Return the result of a call that ends when it is interrupted, once it runs everywhere."""

    def wait() -> None:
        import time

        print("it runs")
        time.sleep(1000)

    result = view.apply_async(wait)
    until(lambda: str(result.stdout).count("it runs") == len(view), "a call runs")
    return result
