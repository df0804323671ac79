"""Treadle: the native engine under Python task graphs.

>>> import treadle
>>> treadle.install()  # from now on Dask collections compute on Treadle  # doctest: +SKIP
"""

from treadle import sync, threaded
from treadle._core import CycleError, MissingDependencyError, __version__
from treadle._install import install, installed, uninstall
from treadle._order import order
from treadle._trace import Trace, trace
from treadle.threaded import get

__all__ = [
    "CycleError",
    "MissingDependencyError",
    "Trace",
    "__version__",
    "get",
    "install",
    "installed",
    "order",
    "sync",
    "threaded",
    "trace",
    "uninstall",
]
