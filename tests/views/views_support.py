"""What tests of views share."""

from __future__ import annotations

from typing import Any

from waiting import until

# Seconds within which everything happens here.
SOON = 60.0


def endless(view: Any) -> Any:
    """Return the result of a call that ends when it is interrupted, once it runs everywhere."""

    def wait() -> None:
        import time

        print("it runs")
        time.sleep(1000)

    result = view.apply_async(wait)
    until(lambda: str(result.stdout).count("it runs") == len(view), "a call runs", SOON)
    return result
