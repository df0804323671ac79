"""Shuffles that P2P cannot do, found before a graph is made: Dask's tasks do them instead.

What can be known by then is what the meta says. Whether a worker has room, or whether a value of a column
can be pickled, is known when rows come: then the task fails, and says so.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import dask

__all__ = ["ShuffleRefusedError", "falls_back", "why_not"]

_SETTING = "treadle.shuffle.fallback"

# Expressions of which it was said: Dask lowers the same one several times.
_said: OrderedDict[str, None] = OrderedDict()
_MOST_SAID = 1024


class ShuffleRefusedError(ValueError):
    """P2P cannot do a shuffle, and ``treadle.shuffle.fallback`` forbids tasks in its place."""


def why_not(meta: Any, column: Any, partitions: int) -> str | None:
    """Return why frames with this meta cannot be shuffled by P2P to so many partitions; None: they can.

    ``column`` has the partition of each row.
    """
    import pandas as pd

    if not isinstance(meta, pd.DataFrame):
        kind = f"{type(meta).__module__.partition('.')[0]}.{type(meta).__name__}"
        return f"its frames are {kind}, and P2P moves rows of pandas.DataFrame"
    from treadle.shuffle._common_plan import Agreed
    from treadle.shuffle._spec import FrameSpec, check_partitions, encode

    empty = meta.iloc[:0]
    try:
        check_partitions(partitions)
        encode(FrameSpec(empty, column, partitions, True))
        Agreed(empty, column, partitions)
    except Exception as error:  # whatever an extension type raises
        return str(error) or type(error).__name__
    return None


def falls_back(what: str, why: str, expression: str) -> None:
    """Warn, once for an expression, that tasks do what P2P cannot.

    Raises
    ------
    ShuffleRefusedError
        The configuration forbids it.
    """
    if not dask.config.get(_SETTING, True):
        raise ShuffleRefusedError(
            f"P2P cannot do {what}: {why}. Tasks could, and {_SETTING} is false: set it to true, or "
            "choose the method tasks"
        )
    if expression in _said:
        return
    _said[expression] = None
    if len(_said) > _MOST_SAID:
        _said.popitem(last=False)
    warnings.warn(
        f"P2P cannot do {what}, so tasks do it: {why}. Choose the method tasks to have no warning, or "
        f"set {_SETTING} to false to have an error",
        UserWarning,
        stacklevel=2,
    )
