"""The Python side of workers, and what runs inside of tasks.

Users call distributed's functions in tasks (``get_worker``, ``get_client``, ``secede``, …); this
package makes them work there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle.errors import _pickled as errors
from treadle.worker._slots import blocking

if TYPE_CHECKING:
    from treadle.worker._service import Service

__all__ = ["Service", "blocking", "errors"]


def __getattr__(name: str) -> Any:
    # A client has no use for it.
    if name == "Service":
        return importlib.import_module("treadle.worker._service").Service
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
