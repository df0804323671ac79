"""Unpickling in several threads of a process that has not imported much yet."""

from __future__ import annotations

import importlib
import io
import pickle
from contextlib import suppress
from typing import Any

from treadle._compat.distributed import IMPORTED_WHEN_RUN

__all__ = ["loads"]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a global of a module whose packages have been imported to their end.

        Python gives out ``dask.array.core`` as soon as that module itself is complete, while
        another thread is still importing ``dask.array``, which then registers what functions of
        ``dask.array.core`` need.
        """
        names = module.split(".")
        # The outermost first: whoever imports ``dask.dataframe`` meanwhile needs its inner packages,
        # and these need it; Python gives one of two threads half a module then.
        for depth in range(1, len(names)):
            # Waits for another thread that imports it, unless that would wait for this one.
            importlib.import_module(".".join(names[:depth]))
        # What a function imports when it runs, a thread may get half of, beside others that unpickle.
        if (package := IMPORTED_WHEN_RUN.get(module)) is not None:
            with suppress(ImportError):
                importlib.import_module(package)
        return super().find_class(module, name)


def loads(data: bytes) -> Any:
    """Unpickle a function, or what else may be the first to need a module.

    Raises
    ------
    Exception
        Whatever unpickling raises.
    """
    return _Unpickler(io.BytesIO(data)).load()
