"""A piece of a partition."""

from __future__ import annotations

from typing import Any, NamedTuple


class Piece(NamedTuple):
    """Rows of one map for one partition. ``data`` is any contiguous buffer."""

    map: int
    rows: int
    data: Any
