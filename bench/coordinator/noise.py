"""Count how often the test of a change keeps one without an effect, and finds one with an effect.

``python bench/coordinator/noise.py [HISTORIES]``: simulated histories of recurring jobs, with noise of 5 % to 20 %.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

from treadle.coordinator._statistics import FEWEST_BEFORE, compare

MEAN = 600.0


def decided(rng: random.Random, noise: float, ratio: float, before: int) -> tuple[str, int]:
    """Run until it is decided; return the verdict and the number of runs."""
    old = [MEAN * math.exp(rng.gauss(0, noise)) for _ in range(before)]
    new: list[float] = []
    while True:
        new.append(MEAN * ratio * math.exp(rng.gauss(0, noise)))
        told = compare(old, new)
        if told.verdict != "wait":
            return told.verdict, len(new)


def line(name: str, count: int, wanted: str, ratio: Callable[[float], float], seed: int) -> None:
    rng = random.Random(seed)
    for before in (FEWEST_BEFORE, 20):
        found = []
        for _ in range(count):
            noise = rng.uniform(0.05, 0.2)
            found.append(decided(rng, noise, ratio(noise), before))
        share = sum(verdict == wanted for verdict, _ in found) / count
        runs = sum(number for _, number in found) / count
        soon = sum(number <= 2 for _, number in found) / count
        print(
            f"{name:34}{before:8}{wanted:>12}{100 * share:8.1f} %{runs:8.1f}{100 * soon:10.1f} %",
            flush=True,
        )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{'effect':34}{'before':>8}{'verdict':>12}{'share':>10}{'runs':>8}{'in 2 runs':>12}")
    line("none", count, "keep", lambda _: 1.0, 1)
    for times in (1.0, 1.5, 2.0, 3.0):
        line(
            f"faster by {times:g} x the noise",
            count,
            "keep",
            lambda noise, t=times: math.exp(-t * noise),
            2,
        )
    for share in (0.1, 0.2, 0.3, 0.5):
        line(f"faster by {100 * share:.0f} %", count, "keep", lambda _, s=share: 1 - s, 3)
    for share in (0.1, 0.5, 1.0):
        line(f"slower by {100 * share:.0f} %", count, "roll back", lambda _, s=share: 1 + s, 4)


if __name__ == "__main__":
    main()
