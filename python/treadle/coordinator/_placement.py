"""Where a large job's shuffles are: in a part of the servers where no other large one is, if there are enough of them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PLACE", "is_large", "part_of", "place"]

# The setting that says a part, as ``1/2``: the first of two.
PLACE = "spark.treadle.place"
# Servers of a part, at least, and parts, at most: each job has fewer disks, the more parts there are.
_SERVERS, _MOST = 8, 4
# A shuffle is at one server for each so many bytes, with its copies: one with more is at all of them.
_BYTES_OF_SERVER = 64 * 2**20


def is_large(size: int, servers: int) -> bool:
    """Return whether a job with so many bytes, its copies included, would be at all of so many servers."""
    return size >= servers * _BYTES_OF_SERVER


def place(size: int, servers: int, free: int, beside: Mapping[str, int]) -> str:
    """Return the part of the servers for a job; empty: it is not large, or there are too few servers, or too little room.

    Parameters
    ----------
    size
        Bytes that it is expected to push, with all copies.
    servers, free
        The servers that take rows, and the bytes that are free on all of them.
    beside
        Bytes of other large jobs that run, by their parts.
    """
    parts = min(_MOST, servers // _SERVERS)
    if parts < 2 or not is_large(size, servers):
        return ""
    names = [f"{part}/{parts}" for part in range(1, parts + 1)]
    # Some may have got theirs when there were more servers, or fewer: their parts overlap others.
    other = sum(count for name, count in beside.items() if name not in names)
    held = {name: beside.get(name, 0) + other // parts for name in names}
    best = min(names, key=held.__getitem__)
    return best if size + held[best] <= free // parts else ""


def part_of(settings: Mapping[str, str]) -> str:
    """Return the part that a job was given; empty: all servers."""
    return settings.get(PLACE, "")
