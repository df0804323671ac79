"""Frames of Treadle's own, which users did not write and need not see.

Dask's ``admin.traceback.shorten`` has patterns of files. Those of Dask and distributed are there already.
"""

from __future__ import annotations

import os
from typing import Any

import dask.config

__all__ = ["CLIENT", "LOCAL", "WAITS", "between", "shorten"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_IN = r"treadle[\\\/]"
#: Around a task in this process.
LOCAL = _IN + r"(sync\.py|threaded\.py|processes\.py|local[\\\/])"
#: Around the calls of a client.
CLIENT = _IN + r"(client|cluster|common|errors)[\\\/]"
#: Between a call and the exception of a task that it raises.
WAITS = _IN + r"(client|cluster|common|errors|local|pickling|scheduler|tracing|worker)[\\\/]"


def shorten(pattern: str) -> None:
    """Have Dask hide the frames of files that match."""
    hidden: Any = dask.config.get("admin.traceback.shorten")
    dask.config.update_defaults({"admin": {"traceback": {"shorten": [*hidden, pattern]}}})


def between() -> tuple[str, ...]:
    """Return the files and folders whose frames lie between the engine and a user's function."""
    return (
        os.path.join(_PACKAGE, "common", "_loop.py"),
        os.path.join(_PACKAGE, "scheduler", ""),
        os.path.join(_PACKAGE, "worker", ""),
    )
