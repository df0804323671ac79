"""Print the figures of the shuffle service, each beside its peers in this run: ``python bench/service/run.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from report import machine, parser, report

MODULES = (
    "pieces",
    "push",
    "compress",
    "memory",
    "integrity",
    "slow",
    "overload",
    "disks",
    "mixed",
    "larger",
    "drain",
    "masters",
    "remote",
)

if __name__ == "__main__":
    report(parser(__doc__, MODULES).parse_args(), machine())
