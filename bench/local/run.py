"""Print the figures of the in-process engine, each a ratio measured in this run: ``python bench/local/run.py``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time

import dask
import numpy

from timing import Figure

MODULES = (
    "per_task",
    "array_sum",
    "smallest",
    "edges",
    "million",
    "parallel",
    "processes",
    "plots",
)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and smaller graphs, to try a change"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=MODULES,
        help=f"one of {', '.join(MODULES)}",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    args = parser.parse_args()

    print(
        f"Python {platform.python_version()}, dask {dask.__version__}, numpy {numpy.__version__}, "
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}\n"
    )
    print(row("figure", "measured", "bar", "verdict"))
    print(row("---", "---", "---", "---"), flush=True)
    figures: list[Figure] = []
    start = time.perf_counter()
    for name in args.only or MODULES:
        for figure in importlib.import_module(name).measure(args.quick):
            figures.append(figure)
            print(row(figure.what, figure.measured, figure.bar, figure.verdict), flush=True)
    missed = sum(f.passed is False for f in figures)
    print(
        f"\n{len(figures)} lines, {missed} missed; load now {os.getloadavg()[0]:.1f}; {time.perf_counter() - start:.0f} s"
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([f.as_dict() for f in figures], file, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
