"""Compare this build with another one, in turns: ``python bench/builds/run.py OTHER``.

The other checkout needs its build (``make build-optimised`` there). Both run the benchmark code of this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from figures import Figure, interleave, time_of  # noqa: E402
from program import Program  # noqa: E402
from report import machine, parser, report  # noqa: E402

PLANES = ("cluster", "transfer", "broadcast")
# How much slower a build may be than the one before.
BAR = 1.05
ROUNDS = 9
# Seconds that a plane may take to start, or one turn.
PATIENCE = 120


def figures_of(plane: str, other: Path, quick: bool) -> Iterator[Figure]:
    pythons = {"this": sys.executable, "other": str(other / ".venv" / "bin" / "python")}
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
            samples = interleave(turns, 3 if quick else ROUNDS)
            ratio = samples.ratio("this", "other")
            yield Figure(
                f"{plane}: {what}",
                time_of(samples.median("this")),
                f"the other build {time_of(samples.median('other'))}",
                f"{ratio:.3f} ×",
                f"≤ {BAR} ×",
                ratio <= BAR,
            )


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
