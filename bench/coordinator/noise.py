"""Count how often the test of a change keeps one without an effect, and finds one with an effect.

``python bench/coordinator/noise.py [HISTORIES]``: simulated histories of recurring jobs, with noise of 5 % to 20 %.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

from treadle.coordinator._statistics import FEWEST_BEFORE
from treadle.coordinator._tuning import Proposal, Tuning

MEAN = 600.0
PROPOSAL = Proposal("bench", "spark.sql.shuffle.partitions", 200.0, 400.0, "")


def decided(rng: random.Random, noise: float, ratio: float, before: int) -> tuple[str, int]:
    """Have a change tried after so many runs; return what became of it, and after how many runs."""
    tuning = Tuning("apply")
    for _ in range(before):
        tuning.ended(MEAN * math.exp(rng.gauss(0, noise)), 0, 0.0)
    change = tuning.proposed([PROPOSAL], 0.0)
    assert change is not None
    runs = 0
    while change.state == "trying":
        _, number = tuning.settings(0.0)
        tuning.ended(MEAN * (ratio if number else 1.0) * math.exp(rng.gauss(0, noise)), number, 0.0)
        runs += 1
    return change.state, runs


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
    line("none", count, "kept", lambda _: 1.0, 1)
    for times in (1.0, 1.5, 2.0, 3.0):
        line(
            f"faster by {times:g} x the noise",
            count,
            "kept",
            lambda noise, t=times: math.exp(-t * noise),
            2,
        )
    for share in (0.1, 0.2, 0.3, 0.5):
        line(f"faster by {100 * share:.0f} %", count, "kept", lambda _, s=share: 1 - s, 3)
    for share in (0.1, 0.5, 1.0):
        line(f"slower by {100 * share:.0f} %", count, "rolled back", lambda _, s=share: 1 + s, 4)


if __name__ == "__main__":
    main()
