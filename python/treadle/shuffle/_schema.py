"""The schema of a frame: the fields that its columns and index become, in order."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from treadle.shuffle._columns import Column
from treadle.shuffle._pickles import dumps


def levels(index: pd.Index[Any]) -> list[Any]:
    """The arrays of an index, one for each level."""
    if isinstance(index, pd.MultiIndex):
        return [index.get_level_values(level).array for level in range(index.nlevels)]
    if isinstance(index, pd.RangeIndex):
        return [index.to_numpy()]
    return [index.array]


def plain(array: Any) -> Any:
    """The NumPy array, if pandas only wraps one."""
    # What derives from it is more than its objects: text, for one.
    is_wrapped = type(array) is pd.arrays.NumpyExtensionArray
    zoneless = isinstance(array, pd.arrays.DatetimeArray | pd.arrays.TimedeltaArray)
    if is_wrapped or (zoneless and not isinstance(array.dtype, pd.DatetimeTZDtype)):
        return array.to_numpy()
    return array


def is_same_name(one: Any, other: Any) -> bool:
    """Whether two names of levels are the same. Any value that has a hash can be a name."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # whatever a class of the user raises, or `pd.NA`
        return False


@dataclass(frozen=True)
class Schema:
    """The columns of a frame, then the levels of its index."""

    columns: tuple[Column, ...]
    levels: tuple[Column, ...]
    names: tuple[Any, ...] | None = None
    """Those of the levels; ``None``: those of the meta."""

    @classmethod
    def of(cls, columns: Iterable[Any], index: Iterable[Any], names: Sequence[Any]) -> Schema:
        """The schema of these arrays: of the columns, and of the levels of the index with their names."""
        both = [tuple(Column(array.dtype) for array in arrays) for arrays in (columns, index)]
        return cls(both[0], both[1], tuple(names))

    @property
    def all(self) -> tuple[Column, ...]:
        return self.columns + self.levels

    @property
    def widths(self) -> list[int]:
        """The widths of all fields; 0: a field of bytes."""
        return [width for column in self.all for width in column.widths]

    @property
    def width(self) -> int:
        """Bytes of a row; 0: rows have different lengths."""
        widths = self.widths
        return sum(widths) if all(widths) else 0

    def is_same(self, other: Schema) -> bool:
        """Whether rows of both have the same bytes for the same values, and names are the same."""
        both = len(self.columns) == len(other.columns) and len(self.levels) == len(other.levels)
        pairs = zip(self.all, other.all, strict=False)
        return (
            both
            and all(one.is_same(another) for one, another in pairs)
            and self.has_names_of(other)
        )

    def has_names_of(self, other: Schema) -> bool:
        """Whether the levels of both have the same names."""
        mine, others = self.names or (), other.names or ()
        return len(mine) == len(others) and all(map(is_same_name, mine, others))

    def note(self, agreed: Schema) -> bytes:
        """This schema as bytes, for a map whose schema is not the agreed one."""
        told = [[column.dtype for column in columns] for columns in (self.columns, self.levels)]
        return dumps(told if self.has_names_of(agreed) else [*told, list(self.names or ())])

    @classmethod
    def from_note(cls, note: bytes) -> Schema:
        columns, index, *names = pickle.loads(note)
        told = tuple(names[0]) if names else None
        return cls(tuple(map(Column, columns)), tuple(map(Column, index)), told)
