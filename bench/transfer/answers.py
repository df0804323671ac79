"""What the programs of this benchmark share: a JSON line in asks, a JSON line out answers."""

from __future__ import annotations

import json
import math
import sys
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
