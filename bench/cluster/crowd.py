"""Idle clients of a scheduler: ``python crowd.py COUNT``, its address and the file of its secret on standard
input.

Says ``ready`` when all are connected, and leaves when standard input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from treadle import _core


class Silent:
    """Takes what the scheduler says, and answers nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


if __name__ == "__main__":
    address, secret = sys.stdin.readline().split()
    crowd = [
        _core.Connection(address, f"idle-{number}", Silent(), secret=Path(secret))
        for number in range(int(sys.argv[1]))
    ]
    print("ready", flush=True)
    sys.stdin.read()
