"""What the programs of this benchmark share: a JSON line in asks, a JSON line out answers."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def answer(handler: Callable[..., Any]) -> None:
    """Call ``handler`` with the arguments of each line until standard input ends."""
    for line in sys.stdin:
        say(handler(**json.loads(line)))


def until_told() -> None:
    """Wait for the end of standard input: a server lives as long as the benchmark wants it."""
    sys.stdin.read()


# Clients of one server begin so many seconds before the window that is theirs together, and end after it.
LEAD = 0.3


def in_window(
    ask: Callable[[], Any], start: float, seconds: float, pace: Callable[[int], float] | None = None
) -> dict[str, Any]:
    """Ask again and again; what was answered from ``start`` (of the monotonic clock) on, for so many seconds, counts.

    All clients of a window have the same: none counts while others do not ask yet, or do not ask any more.
    ``pace(asked)`` says when the next request is due. A ``start`` of 0 is now.
    """
    taken: list[float] = []
    start = start or time.monotonic() + LEAD
    time.sleep(max(0.0, start - LEAD - time.monotonic()))
    asked = 0
    while (began := time.monotonic()) < start + seconds + LEAD:
        ask()
        asked += 1
        ended = time.monotonic()
        if start <= ended < start + seconds:
            taken.append(ended - began)
        if pace:
            time.sleep(max(0.0, pace(asked) - time.monotonic()))
    if not taken:
        raise SystemExit(f"no answer within {seconds:g} s")
    return summary(taken, seconds)


def summary(seconds: Sequence[float], elapsed: float) -> dict[str, Any]:
    """How many, how many a second, and nearest-rank percentiles in seconds."""
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "per_second": len(ordered) / elapsed,
        "p50": ordered[math.ceil(0.50 * len(ordered)) - 1],
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "max": ordered[-1],
    }
