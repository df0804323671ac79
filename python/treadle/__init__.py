"""Treadle: the native engine under Python task graphs.

>>> import treadle
>>> treadle.install()  # from now on Dask collections compute on Treadle  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle._core import CycleError, MissingDependencyError, __version__
from treadle._dask_imports import tell_dask

if TYPE_CHECKING:
    from treadle import processes, sync, threaded, transfer
    from treadle.client import (
        ActorLost,
        Client,
        DataLost,
        Future,
        InputUnavailable,
        LocalCluster,
        WorkerLost,
        as_completed,
        progress,
        wait,
    )
    from treadle.common._shared_memory import empty, shared_arrays
    from treadle.hosting import (
        accelerate,
        adopt,
        attach,
        attach_ray,
        decelerate,
        detach,
        from_ray,
        give_back,
        to_ray,
    )
    from treadle.local._install import install, installed, uninstall
    from treadle.local._lock_held import InterpreterLockWarning
    from treadle.local._order import order
    from treadle.sight import performance_report, widget
    from treadle.threaded import get
    from treadle.tracing._trace import Trace, trace

__all__ = [
    "ActorLost",
    "Client",
    "CycleError",
    "DataLost",
    "Future",
    "InputUnavailable",
    "InterpreterLockWarning",
    "LocalCluster",
    "MissingDependencyError",
    "Trace",
    "WorkerLost",
    "__version__",
    "accelerate",
    "adopt",
    "as_completed",
    "attach",
    "attach_ray",
    "decelerate",
    "detach",
    "empty",
    "from_ray",
    "get",
    "give_back",
    "install",
    "installed",
    "order",
    "performance_report",
    "processes",
    "progress",
    "shared_arrays",
    "sync",
    "threaded",
    "to_ray",
    "trace",
    "transfer",
    "uninstall",
    "wait",
    "widget",
]

# Where a name comes from is imported when it is used: a shuffle server needs no Dask, and whoever only computes
# needs no distributed.
_MODULES = {
    "treadle.client": [
        *("ActorLost", "Client", "DataLost", "Future", "InputUnavailable", "LocalCluster"),
        *("WorkerLost", "as_completed", "progress", "wait"),
    ],
    "treadle.common._shared_memory": ["empty", "shared_arrays"],
    "treadle.hosting": [
        *("accelerate", "adopt", "attach", "attach_ray", "decelerate", "detach"),
        *("from_ray", "give_back", "to_ray"),
    ],
    "treadle.local._install": ["install", "installed", "uninstall"],
    "treadle.local._lock_held": ["InterpreterLockWarning"],
    "treadle.local._order": ["order"],
    "treadle.sight": ["performance_report", "widget"],
    "treadle.threaded": ["get"],
    "treadle.tracing._trace": ["Trace", "trace"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("client", "processes", "sync", "threaded", "transfer"):
        return importlib.import_module(f"treadle.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register ``%px`` and its like: what ``%load_ext treadle`` calls.

    Raises
    ------
    ImportError
        ipyparallel is not installed: ``pip install '.[ipython]'`` in a clone of Treadle.
    """
    importlib.import_module("treadle.views")
    importlib.import_module("treadle.views._magics").load(shell)


tell_dask()
