"""What checksums, digests and their comparison cost: the same run without them, in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from figures import MISSING, Figure, time_of

BYTES = 400_000_000
PIECES = 100
MEMORY = 4 << 30
# Of the rows; a digest is computed for each.
WIDTHS = (88, 8)
# Only a build for tests knows it, and only for a measurement.
OMIT = "TREADLE_TESTING_OMIT_CHECKS"


def seconds(nbytes: int, width: int, omits: bool) -> float:
    """The time of a run, with all its processes with checks or without."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop(OMIT, None)
    if omits:
        environment[OMIT] = "1"
    command = [sys.executable, __file__, str(nbytes), str(width)]
    run = subprocess.run(
        command, check=True, timeout=300, stdout=subprocess.PIPE, text=True, env=environment
    )
    took = json.loads(run.stdout)
    assert took["omits"] == omits
    return float(took["seconds"])


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    from treadle import _core

    bar = "≤ 5 %"
    if not hasattr(_core, "_omits_checks"):
        yield Figure("integrity", MISSING, "this build has no feature testing", bar=bar)
        return
    rounds = 1 if quick else 5
    nbytes = BYTES // 10 if quick else BYTES
    for width in WIDTHS:
        ours, theirs = [], []
        for number in range(rounds):
            # Whoever is first finds another machine than whoever is second.
            for omits in (False, True) if number % 2 else (True, False):
                (theirs if omits else ours).append(seconds(nbytes, width, omits))
        cost = statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) - 1
        yield Figure(
            f"{nbytes / 1e6:.0f} MB of rows of {width} bytes, {PIECES} × {PIECES}, with all checks",
            time_of(statistics.median(ours)),
            f"without checksums and digests: {time_of(statistics.median(theirs))}",
            f"{cost:+.1%}",
            bar if width == WIDTHS[0] else "",
            cost <= 0.05 if width == WIDTHS[0] else None,
            "rows and bytes are counted and compared in both",
        )


def main(nbytes: int, width: int) -> None:
    """Run it, and print how long it took."""
    from jobs import service, shuffled
    from treadle import _core

    with service(MEMORY) as (running, folder):
        shuffled(running, folder, 20, 20, nbytes // 10, words=width // 8)
        took = min(
            shuffled(running, folder, PIECES, PIECES, nbytes, words=width // 8).whole
            for _ in range(2)
        )
    print(json.dumps({"omits": _core._omits_checks, "seconds": took}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
