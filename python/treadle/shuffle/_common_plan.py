"""What all maps of a shuffle know beforehand."""

from __future__ import annotations

from typing import Any

import pandas as pd

from treadle.shuffle._schema import Schema, levels, plain


class Agreed:
    """The meta of a shuffle: names, types, and the column of partition numbers.

    ``column`` has the partition number of each row; there are ``partitions`` of them. It is not sent if
    ``drop_column`` is true. All processes with the same meta compute the same schema.
    """

    def __init__(
        self, meta: pd.DataFrame, column: Any, partitions: int, *, drop_column: bool = True
    ) -> None:
        place = meta.columns.get_loc(column)
        if not isinstance(place, int) and meta.columns.nlevels > 1:
            raise ValueError(
                f"its columns have {meta.columns.nlevels} levels, and {column!r}, which has the partitions of "
                "rows, names only the first of them"
            )
        if not isinstance(place, int):
            raise ValueError(f"several columns are named {column!r}: only one can have partitions")
        self.meta = meta
        self.column = column
        self.place = place
        self.partitions = partitions
        kept = [at for at in range(meta.shape[1]) if at != place or not drop_column]
        self.kept = kept
        self.empty = meta.iloc[:0, kept]
        arrays = [plain(meta.iloc[:0, at].array) for at in kept]
        self.schema = Schema.of(arrays, map(plain, levels(meta.index[:0])), meta.index.names)

    @property
    def width(self) -> int:
        """Bytes of a row; 0: rows have different lengths."""
        return self.schema.width

    @property
    def least(self) -> int:
        """The least length of rows of a map with another schema: longer than agreed rows."""
        return self.width + 1 if self.width else 0

    def places(self, columns: pd.Index[Any]) -> list[int]:
        """The positions of all columns of the meta in ``columns``.

        Raises ``ValueError`` if names differ.
        """
        mine = self.meta.columns
        if len(columns) == len(mine) and list(columns) == list(mine):
            return list(range(len(mine)))
        others = set(columns) ^ set(mine)
        if others or not mine.is_unique or not columns.is_unique:
            named = ", ".join(sorted(map(repr, others))) or "how often names occur"
            raise ValueError(
                f"the input has columns {list(columns)}, and the meta has {list(mine)}: "
                f"they differ in {named}. Pass the right meta= to what makes the input"
            )
        return [int(place) for place in columns.get_indexer(mine)]
