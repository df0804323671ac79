"""Print the figures of Treadle inside a Dask cluster: ``python bench/hosting/run.py``.

``FRISKY_PYTHON=PATH`` names an interpreter that has ``frisky`` and ``distributed``, the peer of ``attach``.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# `attached` has the workloads of the cluster's benchmark.
sys.path += [str(HERE.parent), str(HERE.parent / "cluster")]

from report import machine, parser, report  # noqa: E402

MODULES = (
    "attach",
    "adopt",
    "accelerate",
    "comm",
    "first",
    "pieces",
    "idle",
    "attached",
    "scaling",
)

if __name__ == "__main__":
    report(parser(__doc__, MODULES).parse_args(), machine())
