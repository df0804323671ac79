"""Clocks of other processes, as they are measured for traces."""

from __future__ import annotations

import random

import pytest

from treadle.tracing._clocks import DRIFT, Clock, Sample

SECOND = 1_000_000_000


def measurements(
    offset: int, rate: float, *, count: int, seed: int, shortest: int = 40_000
) -> list[Sample]:
    """Questions over one minute, asked and answered after random delays.

    The other clock shows ``offset + (1 + rate) * t`` when ours shows ``t``.
    """
    randomness = random.Random(seed)
    samples = []
    for _ in range(count):
        asked = randomness.randrange(60 * SECOND)
        there = asked + shortest // 2 + int(randomness.expovariate(1 / 300_000))
        came = there + shortest // 2 + int(randomness.expovariate(1 / 300_000))
        samples.append(Sample(asked, offset + round((1 + rate) * there), came))
    return samples


@pytest.mark.parametrize("rate", [0.0, 0.9 * DRIFT, -0.9 * DRIFT])
@pytest.mark.parametrize("seed", range(20))
def test_a_translated_time_is_as_exact_as_is_said(seed: int, rate: float) -> None:
    offset = random.Random(seed).randrange(-(10**15), 10**15)
    samples = measurements(offset, rate, count=300, seed=seed)
    clock = Clock(samples)
    back = Clock(samples, turned=True)
    assert clock.error < 1_000_000
    first, last = min(s.asked for s in samples), max(s.came for s in samples)
    for time in range(first, last, SECOND // 7):
        theirs = offset + (1 + rate) * time
        assert abs(clock(time) - theirs) <= clock.error + 1
        assert abs(back(theirs) - time) <= back.error + 1


def test_order_is_kept() -> None:
    clock = Clock(measurements(10**12, DRIFT / 2, count=500, seed=1))
    times = [clock(time) for time in range(0, 60 * SECOND, SECOND // 100)]
    assert times == sorted(times)


def test_one_quick_answer_outweighs_many_slow_ones() -> None:
    slow = [Sample(t, t + 5_000_000, t + 5_000_000) for t in range(0, SECOND, SECOND // 10)]
    quick = Sample(SECOND // 2, SECOND // 2 + 10_000, SECOND // 2 + 20_000)
    clock = Clock([*slow, quick])
    assert clock.error < 100_000
    assert abs(clock(SECOND // 2) - SECOND // 2) < 100_000


def test_without_measurements_nothing_is_known() -> None:
    assert Clock([]).error == float("inf")
    assert Clock.same()(5) == 5
    assert Clock.same().error == 0
