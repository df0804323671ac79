"""The command line of a benchmark: runs its modules and prints their figures as one table."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import Figure


def machine() -> str:
    return (
        f"Python {platform.python_version()}, Linux {platform.release().split('-')[0]}, "
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}"
    )


def parser(description: str | None, modules: tuple[str, ...]) -> argparse.ArgumentParser:
    """The options that every benchmark has; one may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, to try a change")
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        choices=modules,
        default=modules,
        help=f"some of {', '.join(modules)}",
    )
    parser.add_argument("--json", metavar="PATH", help="also write the figures to PATH")
    parser.add_argument("--markdown", metavar="PATH", help="also write the table to PATH")
    return parser


def report(
    args: argparse.Namespace, title: str, load: Callable[[str], Any] = importlib.import_module
) -> None:
    """Run what ``load`` finds by name, each with ``measure(quick)``, and print what they yield."""
    # Ended from outside, it leaves no process and no network namespace behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines = [title, "", _row(Figure.COLUMNS), _row(("---",) * len(Figure.COLUMNS))]
    print("\n".join(lines), flush=True)
    figures: list[Figure] = []
    start = time.perf_counter()
    for name in args.only:
        for figure in load(name).measure(args.quick):
            figures.append(figure)
            lines.append(_row(figure.cells()))
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


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
