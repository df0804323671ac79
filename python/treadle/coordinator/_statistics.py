"""Whether a change helps, by a test that knows how much a job's durations differ without one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.coordinator._watching import LEAST_NOISE

__all__ = ["ENOUGH_BEFORE", "FEWEST_BEFORE", "MOST_AFTER", "Comparison", "compare"]

# Runs without the change before it is tried. They show the noise; more of them are made while it is tried.
FEWEST_BEFORE = 2
# Runs of either kind after which more runs without the change add little.
ENOUGH_BEFORE = 10
_MOST_BEFORE = 30
# After so many runs it is decided.
MOST_AFTER = 12
_FEWEST_AFTER = 3
# Two runs are enough for what saves so much that neither a day's cycle nor a shift of the input looks like it.
_FEWEST_OF_LARGE, _LARGE = 2, 0.7
# At each of the ten looks, the chance that a change without an effect is kept. They add up to about 4 %, as the looks
# are of mostly the same runs (bench/coordinator/noise.py counts).
_KEPT_BY_CHANCE = 0.0075
# A change that hurts is not tried longer than needed: a wrong rollback costs little, as it can be tried again.
_HURTS = 0.02
# One that seems to cost so much is ended on less proof.
_HURTS_MUCH, _MUCH = 0.1, 1.4


@dataclass(frozen=True)
class Comparison:
    """What is known of a change. ``ratio`` is the duration with it by that without it."""

    verdict: str
    """``keep``, ``roll back`` or ``wait`` for more runs."""
    ratio: float
    low: float
    high: float
    """Ends of the interval of 90 % around the ratio."""
    reason: str


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Compare the durations without and with a change, in seconds, in the order of their runs.

    Durations are compared by their logarithms: an effect is a share, and so is the noise.
    """
    if len(before) < 2 or not after:
        return Comparison("wait", 1.0, 0.0, math.inf, "there are too few runs")
    old = _trimmed([math.log(max(one, 1e-3)) for one in before[-_MOST_BEFORE:]])
    new = [math.log(max(one, 1e-3)) for one in after]
    deviation, freedom = _pooled(old, new)
    error = deviation * math.sqrt(1 / len(old) + 1 / len(new))
    effect = statistics.fmean(new) - statistics.fmean(old)
    t = effect / error
    slower, faster = _upper(t, freedom), _upper(-t, freedom)
    width = _quantile(0.95, freedom) * error
    ratio, low, high = (math.exp(x) for x in (effect, effect - width, effect + width))
    measured = f"{_percent(ratio)} after {len(new)} runs ({_percent(low)} to {_percent(high)})"

    def found(verdict: str, why: str) -> Comparison:
        return Comparison(verdict, ratio, low, high, f"{measured}: {why}")

    if slower < (_HURTS_MUCH if ratio > _MUCH else _HURTS) and ratio > 1 + LEAST_NOISE:
        return found("roll back", "it is slower by more than its noise")
    enough = _FEWEST_OF_LARGE if ratio < _LARGE else _FEWEST_AFTER
    if len(new) >= enough and faster < _KEPT_BY_CHANCE:
        return found("keep", "it is faster by more than its noise")
    if len(new) >= MOST_AFTER:
        return found("roll back", "no effect is seen above the noise")
    return found("wait", "more runs are needed")


def _trimmed(values: list[float]) -> list[float]:
    """Pull outliers in to three deviations: one run during an outage must not hide an effect."""
    # Of few values nobody knows which one is an outlier.
    if len(values) < ENOUGH_BEFORE:
        return values
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(one - middle) for one in values)
    if spread == 0:
        return values
    return [min(max(one, middle - 3.5 * spread), middle + 3.5 * spread) for one in values]


def _pooled(old: list[float], new: list[float]) -> tuple[float, int]:
    """Return the standard deviation of both, and its degrees of freedom."""
    squares = sum((one - statistics.fmean(old)) ** 2 for one in old)
    freedom = len(old) - 1
    if len(new) > 1:
        squares += sum((one - statistics.fmean(new)) ** 2 for one in new)
        freedom += len(new) - 1
    return max(LEAST_NOISE, math.sqrt(squares / freedom)), freedom


def _upper(t: float, freedom: int) -> float:
    """Return the chance that Student's t is larger than this."""
    half = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return half if t > 0 else 1 - half


def _quantile(chance: float, freedom: int) -> float:
    low, high = 0.0, 1000.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _upper(middle, freedom) > 1 - chance else (low, middle)
    return low


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 + step * d, 1 + step / c
            d, c = 1 / (d if abs(d) > tiny else tiny), c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return front * value / a


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %" if ratio < 100 else "much slower"
