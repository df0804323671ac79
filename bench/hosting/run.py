"""Print the figures of Treadle inside a Dask cluster: ``python bench/hosting/run.py``.

``FRISKY_PYTHON=PATH`` names an interpreter that has ``frisky`` and ``distributed``, the peer of ``attach``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from report import machine, parser, report

MODULES = ("attach", "adopt", "first", "pieces")

if __name__ == "__main__":
    report(parser(__doc__, MODULES).parse_args(), machine())
