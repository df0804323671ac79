"""How the clock of another process differs from one's own.

A question that was asked at ``asked`` and answered at ``came``, by one clock, with the other clock's
``theirs`` in between, says how far they are apart, to half of the time that it took (as NTP does,
RFC 5905, section 8). Clocks also run at different rates, by less than ``DRIFT``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

__all__ = ["DRIFT", "Clock", "Sample"]

#: Clocks of two machines run at rates that differ by less: a quartz is exact to some 50 in a million.
DRIFT = 100e-6


class Sample(NamedTuple):
    """A question and its answer; nanoseconds."""

    asked: int
    theirs: int
    came: int

    def turned(self) -> _Point:
        """The same, for the way from their clock to ours."""
        point = self.point()
        return _Point(self.theirs, -point.offset, point.error)

    def point(self) -> _Point:
        middle = (self.asked + self.came) / 2
        return _Point(middle, self.theirs - middle, (self.came - self.asked) / 2)


class _Point(NamedTuple):
    time: float
    offset: float
    error: float


class Clock:
    """Translates times of one clock into those of another.

    Attributes
    ----------
    error
        Nanoseconds by which a translated time may be wrong, between the first and the last
        measurement; infinite without any.
    """

    def __init__(self, samples: Iterable[Sample], *, turned: bool = False) -> None:
        points = [sample.turned() if turned else sample.point() for sample in samples]
        self._points = _best(sorted(points))
        self.error = _error(self._points)

    @classmethod
    def same(cls) -> Clock:
        """Return that of a process whose clock is the same."""
        clock = cls([])
        clock.error = 0.0
        return clock

    def __call__(self, time: float) -> float:
        """Return the other clock's time."""
        points = self._points
        if not points:
            return time
        place = bisect(points, (time,))
        if place == 0:
            return time + points[0].offset
        if place == len(points):
            return time + points[-1].offset
        before, after = points[place - 1], points[place]
        share = (time - before.time) / (after.time - before.time)
        return time + before.offset + share * (after.offset - before.offset)


def _best(points: list[_Point]) -> list[_Point]:
    """Leave out measurements that say less than another one does, in spite of the drift since.

    Two passes over the points in the order of their times: in each, what the best one so far says.
    """
    for _ in range(2):
        kept: list[_Point] = []
        for point in points:
            if kept:
                known = kept[-1].error + DRIFT * abs(point.time - kept[-1].time)
                if point.error > known or point.time == kept[-1].time:
                    continue
            kept.append(point)
        points = kept[::-1]
    return points


def _error(points: list[_Point]) -> float:
    if not points:
        return float("inf")
    error = max(point.error for point in points)
    gaps = [after.time - before.time for before, after in pairwise(points)]
    return error + DRIFT * max(gaps, default=0.0) / 2
