"""The functions that tasks call; importable by workers, which find this folder in their path."""

from __future__ import annotations

import time


def inc(x: int) -> int:
    return x + 1


def add(*numbers: int) -> int:
    return sum(numbers)


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
