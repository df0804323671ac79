"""Dask knows Treadle's schedulers by name, for ``compute(scheduler="treadle")``, and Treadle alone imports no Dask."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["tell_dask"]


#: The modules of the schedulers, by the names that Dask knows them by.
_MODULES = {
    "treadle": "treadle.threaded",
    "treadle-sync": "treadle.sync",
    "treadle-processes": "treadle.processes",
}


def tell_dask() -> None:
    """Give Dask the names: now if it is imported, and otherwise when it is."""
    if "dask" in sys.modules:
        _give_names()
    else:
        sys.meta_path.insert(0, _Finder())


def _give_names() -> None:
    # Dask is of use without Treadle, too.
    with suppress(ImportError):
        schedulers = importlib.import_module("dask.base").named_schedulers
        for name, module in _MODULES.items():
            schedulers.setdefault(name, partial(_get, module))


def _get(module: str, *args: Any, **kwargs: Any) -> Any:
    # Not imported before it is called: a module of Treadle may be what imports Dask.
    return importlib.import_module(module).get(*args, **kwargs)


class _Finder(MetaPathFinder):
    """Finds Dask as the other finders do. When it has been imported, it is given the names."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "dask":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                with suppress(ValueError):
                    sys.meta_path.remove(self)
                _give_names()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
