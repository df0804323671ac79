"""Treadle: the native engine under Python task graphs.

>>> import treadle
>>> treadle.install()  # from now on Dask collections compute on Treadle  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle import sync, threaded
from treadle._core import CycleError, MissingDependencyError, __version__
from treadle.common._shared_memory import empty, shared_arrays
from treadle.local._install import install, installed, uninstall
from treadle.local._lock_held import InterpreterLockWarning
from treadle.local._order import order
from treadle.threaded import get
from treadle.tracing._trace import Trace, trace

if TYPE_CHECKING:
    from treadle import processes, transfer
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
]

# Names of treadle.client, which imports distributed.
_CLIENT = frozenset(
    [
        *("Client", "Future", "LocalCluster", "as_completed", "progress", "wait"),
        *("ActorLost", "DataLost", "InputUnavailable", "WorkerLost"),
    ]
)
# Those of treadle.hosting, which does, too.
_HOSTING = frozenset(
    [
        *("accelerate", "adopt", "attach", "attach_ray", "decelerate", "detach"),
        *("from_ray", "give_back", "to_ray"),
    ]
)


def __getattr__(name: str) -> Any:
    # Whoever only computes pays nothing for the network.
    if name in ("client", "processes", "transfer"):
        return importlib.import_module(f"treadle.{name}")
    if name in _CLIENT:
        return getattr(importlib.import_module("treadle.client"), name)
    if name in _HOSTING:
        return getattr(importlib.import_module("treadle.hosting"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Register ``%px`` and its like: what ``%load_ext treadle`` calls.

    Raises
    ------
    ImportError
        ipyparallel is not installed: ``pip install '.[ipython]'`` in a clone of Treadle.
    """
    importlib.import_module("treadle.views")
    importlib.import_module("treadle.views._magics").load(shell)
