"""Print how long Spark takes for a shuffle on the shuffle service, beside its own: ``make bench-spark``.

Each shape is shuffled by both in turns. What a shuffle adds is the time of the job less that of the same job without rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "spark"))

from service import Service

HERE = Path(__file__).parent
PYTHON = os.environ["TREADLE_SPARK_PYTHON"]
JAR = os.environ["TREADLE_SPARK_JAR"]
SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraClassPath": JAR,
    "spark.executor.extraClassPath": JAR,
}
LONGEST = 1800


def measured(
    settings: dict[str, str], shape: tuple[int, int, int], directory: Path
) -> tuple[float, float]:
    """The seconds of a job without rows, and with them: of one driver, the better of its rounds."""
    size, maps, partitions = shape
    given = [{**SETTINGS, **settings}, size, maps, partitions, 2]
    with (directory / "log").open("w") as log:
        done = subprocess.run(
            [PYTHON, str(HERE / "program.py"), json.dumps(given)],
            env={**os.environ, "PYSPARK_PYTHON": PYTHON, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=LONGEST,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not lines:
        raise SystemExit((directory / "log").read_text()[-4000:])
    empty, full = json.loads(lines[0].removeprefix("seconds "))
    return min(empty), min(full)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--turns", type=int, default=2, help="how often each is measured")
    parser.add_argument(
        "shapes", nargs="*", default=["10x10", "1000x1000"], help="maps x partitions"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kinds = {"stock": {}, "treadle": Service(stack, directory, "2GiB").settings()}
        for shape in options.shapes:
            maps, partitions = (int(number) for number in shape.split("x"))
            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for _ in range(options.turns):
                for kind, settings in kinds.items():
                    size = options.megabytes * 1_000_000
                    found[kind].append(measured(settings, (size, maps, partitions), directory))
            # Of each: the job, and what the shuffle adds to it.
            total = {kind: statistics.median(full for _, full in found[kind]) for kind in kinds}
            added = {
                kind: statistics.median(full - empty for empty, full in found[kind])
                for kind in kinds
            }
            print(f"{options.megabytes} MB as {shape} pieces:")
            for kind in kinds:
                print(f"  {kind}: {total[kind]:.2f} s, of which the rows add {added[kind]:.2f} s")
            print(
                f"  treadle takes {total['treadle'] / total['stock']:.2f} × of stock's time",
                flush=True,
            )
            print(
                f"  and {added['treadle'] / added['stock']:.2f} × of what the rows add", flush=True
            )


if __name__ == "__main__":
    main()
