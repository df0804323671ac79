"""Print the figures of the shuffle plane, each beside its peers in this run: ``python bench/shuffle/run.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
# Workers import the functions of `work.py`.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

from report import machine, parser, report  # noqa: E402

MODULES = ("table", "indexed", "keyed", "rechunk", "beyond", "pieces", "scheduling")

if __name__ == "__main__":
    report(parser(__doc__, MODULES).parse_args(), machine())
