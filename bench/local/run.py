"""Print the figures of the in-process engine, each a ratio measured in this run: ``python bench/local/run.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from report import machine, parser, report

MODULES = (
    "per_task",
    "array_sum",
    "smallest",
    "edges",
    "million",
    "parallel",
    "processes",
    "pipelines",
    "plots",
)

if __name__ == "__main__":
    report(parser(__doc__, MODULES).parse_args(), machine())
