"""Print the figures of the broadcast plane beside ipyparallel's, and draw the notebook's plots.

``python bench/broadcast/run.py``; the pictures are in ``bench/broadcast/out``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from report import machine, parser, report

MODULES = ("notebook", "large", "constant", "distant", "joined", "sweep", "sockets")

if __name__ == "__main__":
    report(parser(__doc__, MODULES).parse_args(), machine())
