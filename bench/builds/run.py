"""Compare this build with another one, in turns: ``python bench/builds/run.py OTHER``.

The other checkout needs its build (``make build-optimised`` there). Both run the benchmark code of this one.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from figures import Figure, Samples, interleave, time_of  # noqa: E402
from program import Program  # noqa: E402
from report import machine, parser, report  # noqa: E402

PLANES = ("cluster", "transfer", "broadcast")
# How much slower a build may be than the one before.
BAR = 1.05
# Where threads and memory come to lie differs from start to start, and moves a figure by up to a quarter on a
# machine of few cores: two starts of one build differ as much. So a figure is the median over many starts.
STARTS = 9
ROUNDS = 5
# Seconds that a plane may take to start, or one turn.
PATIENCE = 120


@dataclass
class Sides:
    """What both builds took for one workload: a ratio for each start."""

    this: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def add(self, samples: Samples) -> None:
        self.this.append(samples.median("this"))
        self.other.append(samples.median("other"))
        self.ratios.append(samples.ratio("this", "other"))

    def figure(self, what: str) -> Figure:
        ratio = statistics.median(self.ratios)
        return Figure(
            what,
            time_of(statistics.median(self.this)),
            f"the other build {time_of(statistics.median(self.other))}",
            f"{ratio:.3f} ×",
            f"≤ {BAR} ×",
            ratio <= BAR,
            f"one start: {min(self.ratios):.2f} to {max(self.ratios):.2f} ×",
        )


def measure_start(plane: str, pythons: dict[str, str], all_sides: dict[str, Sides]) -> None:
    """Start the plane once with each build, in the order of ``pythons``, and add what each workload took."""
    # Workers import the functions that the benchmarks call.
    environment = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / plane)])}
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(Program([python, str(HERE / "turns.py"), plane], environment))
            for name, python in pythons.items()
        }
        names = [program.told(PATIENCE) for program in programs.values()]
        for what in names[0]:

            def seconds(program: Program, what: str = what) -> float:
                return float(program.ask(PATIENCE, what=what)["seconds"])

            turns = {name: partial(seconds, program) for name, program in programs.items()}
            all_sides.setdefault(what, Sides()).add(interleave(turns, ROUNDS))


def figures_of(plane: str, other: Path, quick: bool) -> Iterator[Figure]:
    pythons = {"this": sys.executable, "other": str(other / ".venv" / "bin" / "python")}
    all_sides: dict[str, Sides] = {}
    for number in range(2 if quick else STARTS):
        order = list(pythons.items())[:: -1 if number % 2 else 1]
        measure_start(plane, dict(order), all_sides)
        print(f"{plane}: start {number + 1}", file=sys.stderr, flush=True)
    for what, sides in all_sides.items():
        yield sides.figure(f"{plane}: {what}")


@dataclass(frozen=True)
class Plane:
    """What ``report`` runs: the figures of a plane."""

    name: str
    other: Path

    def measure(self, quick: bool) -> Iterator[Figure]:
        return figures_of(self.name, self.other, quick)


def main() -> None:
    options = parser(__doc__, PLANES)
    options.add_argument("other", type=Path, help="the checkout of the other build")
    args = options.parse_args()
    other = args.other.resolve()
    if not (other / ".venv" / "bin" / "python").exists():
        options.error(f"{other} has no build: run `make build-optimised` there")
    report(args, f"{machine()}, beside {other.name}", lambda plane: Plane(plane, other))


if __name__ == "__main__":
    main()
