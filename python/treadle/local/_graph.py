"""What a ``get`` is given, made ready for the engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import dask.config

Key: TypeAlias = Hashable
#: A key, or nested lists of keys.
Keys: TypeAlias = "Key | Sequence[Keys]"
Graph: TypeAlias = Mapping[Key, Any]
Cache: TypeAlias = MutableMapping[Key, Any]


def materialize(dsk: Any) -> dict[Key, Any]:
    """The graph as a dictionary of tasks.

    Dask hands over a dictionary, a ``HighLevelGraph`` or an expression; the latter are built
    here, which is where Dask fuses tasks.
    """
    if type(dsk) is dict:
        return dsk
    if not isinstance(dsk, Mapping):
        dsk = dsk.__dask_graph__()
    return dsk if type(dsk) is dict else dict(dsk)


def configured_cache(cache: Cache | None) -> Cache | None:
    """The cache to use: the one given, or that of Dask's configuration."""
    if cache is not None:
        return cache
    configured: Cache | None = dask.config.config.get("cache")
    return configured


def rerun_locally(kwargs: Mapping[str, Any]) -> bool:
    """Whether a task that failed is to be run again on the calling thread, for a debugger."""
    choice = kwargs.get("rerun_exceptions_locally")
    if choice is None:
        choice = dask.config.config.get("rerun_exceptions_locally", False)
    return bool(choice)
