"""Replaces Dask's local schedulers wherever Dask refers to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import dask
import dask.base
import dask.local
import dask.multiprocessing
import dask.threaded


def replace(
    sync: Callable[..., Any],
    threaded: Callable[..., Any],
    processes: Callable[..., Any] = dask.multiprocessing.get,
) -> None:
    """Replace each reference to them in what is imported of Dask so far."""
    replacements = {
        dask.local.get_sync: sync,
        dask.threaded.get: threaded,
        dask.multiprocessing.get: processes,
    }

    def replacement(value: object) -> object | None:
        try:
            return replacements.get(value)  # type: ignore[call-overload]
        except TypeError:  # not hashable
            return None

    modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "dask"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if new := replacement(value):
                setattr(module, name, new)
            elif isinstance(value, type) and (
                new := replacement(getattr(value, "__dask_scheduler__", None))
            ):
                value.__dask_scheduler__ = staticmethod(new)
    for name, value in dask.base.named_schedulers.items():
        dask.base.named_schedulers[name] = replacement(value) or value
