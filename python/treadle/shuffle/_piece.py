"""What a reader gets."""

from __future__ import annotations

from typing import Any, NamedTuple


class Piece(NamedTuple):
    """Rows of one map for one partition: anything with contiguous bytes."""

    map: int
    rows: int
    data: Any
