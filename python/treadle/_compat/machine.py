"""What distributed says of this machine, without all else that it imports."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

__all__ = ["memory_of_machine"]


@cache
def memory_of_machine() -> int:
    """Return bytes: ``distributed.system.MEMORY_LIMIT``.

    A shuffle server needs this of distributed and nothing else: the module is run by itself.
    """
    package = find_spec("distributed")
    if "distributed" not in sys.modules and package is not None and package.origin is not None:
        path = Path(package.origin).with_name("system.py")
        spec = spec_from_file_location("treadle._compat._system_of_distributed", path)
        if spec is not None and spec.loader is not None and path.exists():
            alone = module_from_spec(spec)
            spec.loader.exec_module(alone)
            return int(alone.MEMORY_LIMIT)
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)
