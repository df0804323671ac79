"""Print the figures of the cluster engine, each beside its peers in this run: ``python bench/cluster/run.py``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
# Workers import the functions of `work.py`.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

from figures import Figure  # noqa: E402

MODULES = ("throughput", "graphs", "latency", "million", "workloads")


def row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, to try a change")
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        choices=MODULES,
        help=f"some of {', '.join(MODULES)}",
    )
    parser.add_argument("--json", metavar="PATH", help="also write the figures to PATH")
    parser.add_argument("--markdown", metavar="PATH", help="also write the table to PATH")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = (
        f"Python {platform.python_version()}, Linux {platform.release().split('-')[0]}, "
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}"
    )
    lines = [machine, "", row(Figure.COLUMNS), row(("---",) * len(Figure.COLUMNS))]
    print("\n".join(lines), flush=True)
    figures: list[Figure] = []
    start = time.perf_counter()
    for name in args.only or MODULES:
        for figure in importlib.import_module(name).measure(args.quick):
            figures.append(figure)
            lines.append(row(figure.cells()))
            print(lines[-1], flush=True)
    missed = sum(f.passed is False for f in figures)
    end = f"load now {os.getloadavg()[0]:.1f}; {time.perf_counter() - start:.0f} s"
    lines += ["", f"{len(figures)} lines, {missed} missed; {end}"]
    print("\n".join(lines[-2:]))
    if args.json:
        text = json.dumps([f.as_dict() for f in figures], indent=1, ensure_ascii=False)
        Path(args.json).write_text(text + "\n", encoding="utf-8")
    if args.markdown:
        Path(args.markdown).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
