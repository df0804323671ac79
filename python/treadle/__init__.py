"""Treadle: the native engine under Python task graphs.

>>> import treadle
>>> treadle.install()  # from now on Dask collections compute on Treadle  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle import sync, threaded
from treadle._core import CycleError, MissingDependencyError, __version__
from treadle._install import install, installed, uninstall
from treadle._order import order
from treadle._shared import empty, shared_arrays
from treadle._trace import Trace, trace
from treadle.threaded import get

if TYPE_CHECKING:
    from treadle import transfer

__all__ = [
    "CycleError",
    "MissingDependencyError",
    "Trace",
    "__version__",
    "empty",
    "get",
    "install",
    "installed",
    "order",
    "shared_arrays",
    "sync",
    "threaded",
    "trace",
    "transfer",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    # Whoever only computes pays nothing for the network.
    if name == "transfer":
        return importlib.import_module("treadle.transfer")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
