"""What all maps of a shuffle know beforehand."""

from __future__ import annotations

from typing import Any

import pandas as pd

from treadle.shuffle._schema import Schema, levels, plain


class Agreed:
    """The meta of a shuffle: names, types, and the column that says where rows go.

    ``column`` has the number of the partition of each row, of ``partitions``. It does not travel if it
    is dropped. Whoever has the same meta agrees on the same.
    """

    def __init__(
        self, meta: pd.DataFrame, column: Any, partitions: int, *, drop_column: bool = True
    ) -> None:
        place = meta.columns.get_loc(column)
        if not isinstance(place, int):
            raise ValueError(f"There are several columns {column!r}: one says where rows go.")
        self.meta = meta
        self.column = column
        self.place = place
        self.partitions = partitions
        kept = [at for at in range(meta.shape[1]) if at != place or not drop_column]
        self.kept = kept
        self.empty = meta.iloc[:0, kept]
        arrays = [plain(meta.iloc[:0, at].array) for at in kept]
        self.schema = Schema.of(arrays, map(plain, levels(meta.index[:0])))

    @property
    def width(self) -> int:
        """Bytes of a row; 0: rows differ."""
        return self.schema.width

    @property
    def least(self) -> int:
        """Bytes that a row of a map with another schema has at least: more than an agreed one."""
        return self.width + 1 if self.width else 0

    def places(self, columns: pd.Index[Any]) -> list[int]:
        """Where the columns of the meta are among ``columns``, the one that says where rows go too.

        Raises ``ValueError`` if they are others.
        """
        mine = self.meta.columns
        if len(columns) == len(mine) and list(columns) == list(mine):
            return list(range(len(mine)))
        others = set(columns) ^ set(mine)
        if others or not mine.is_unique or not columns.is_unique:
            named = ", ".join(sorted(map(repr, others))) or "the number of equal names"
            raise ValueError(
                f"Columns {list(columns)} are not those of the shuffle, {list(mine)}: "
                f"they differ in {named}."
            )
        return [int(place) for place in columns.get_indexer(mine)]
