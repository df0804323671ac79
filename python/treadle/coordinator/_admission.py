"""Whether a job fits onto the servers, by what its earlier runs have pushed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Admission", "Forecast", "Room", "admit", "forecast"]

# Runs that count, and how much more than the largest of most of them a run may push.
_RUNS = 20
_QUANTILE = 0.9
_MARGIN = 1.2
# Servers that have less than this share of their room left slow down before they are full.
_KEPT_FREE = 0.1
# A job of which nothing is known may take part as long as this share is free.
_FREE_FOR_UNKNOWN = 0.25


@dataclass(frozen=True)
class Room:
    """What the servers report."""

    servers: int
    free_bytes: int
    total_bytes: int
    held_bytes: int = 0
    """Of running jobs, with their copies. What they have pushed is no longer free, and was promised, too."""


@dataclass(frozen=True)
class Forecast:
    """What the next run of a recurring job will push; None bytes: nobody knows."""

    bytes: int | None
    runs: int


@dataclass(frozen=True)
class Admission:
    """Whether a job comes onto the servers, with how many copies; 0: it does not."""

    copies: int
    reason: str


def forecast(pushed: Sequence[int]) -> Forecast:
    """Return what the next run will push, from the bytes of the runs before, the latest last."""
    recent = sorted(pushed[-_RUNS:])
    if not recent:
        return Forecast(None, 0)
    at = min(len(recent) - 1, int(_QUANTILE * len(recent)))
    return Forecast(int(recent[at] * _MARGIN), len(recent))


def admit(
    expected: Forecast, room: Room | None, promised: int, *, fewer_copies: bool = False
) -> Admission:
    """Decide about a job. ``promised`` are bytes that running jobs were admitted with, with their copies."""
    if room is None:
        return Admission(2, "the servers' room is not known")
    # What is held is no longer free: only what is still to be pushed is taken from what is.
    promised = max(0, promised - room.held_bytes)
    if room.servers == 0:
        return Admission(0, "no shuffle server is there")
    copies = min(2, room.servers)
    free = max(0, room.free_bytes - promised - int(room.total_bytes * _KEPT_FREE))
    if expected.bytes is None:
        if room.free_bytes - promised >= room.total_bytes * _FREE_FOR_UNKNOWN:
            return Admission(copies, "no run of it is known, and the servers have room")
        return Admission(0, "no run of it is known, and the servers are short of room")
    size, left = _size(expected.bytes), _size(free)
    for number in range(copies, 0 if fewer_copies else copies - 1, -1):
        if expected.bytes * number <= free:
            fewer = "" if number == copies else " in one copy, which its rule permits"
            return Admission(number, f"{size} are expected{fewer}, {left} are free")
    twice = " in two copies" if copies > 1 else ""
    return Admission(0, f"{size} are expected{twice}, and only {left} are free")


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return (
                f"{number:.0f} {unit}" if number >= 100 or unit == "B" else f"{number:.1f} {unit}"
            )
        number /= 1000
    raise AssertionError
