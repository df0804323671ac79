"""What is shuffled: data frames, or the chunks of an array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from treadle.shuffle._spec import ArraySpec, FrameSpec, position

if TYPE_CHECKING:
    from treadle import _core
    from treadle.shuffle._piece import Piece


class Kind(Protocol):
    """The part of a shuffle that depends on what is shuffled."""

    width: int
    """Bytes of an agreed row; 0: rows are variable."""

    def map_of(self, place: Any) -> int:
        """Return the position of an input, as Dask's graph names it."""

    def partition_of(self, place: Any) -> int:
        """Return the number of an output, as Dask's graph names it."""

    def split(self, data: Any, place: Any) -> _core.Rows:
        """Return the rows of an input."""

    def assemble(self, pieces: Sequence[Piece]) -> Any:
        """Return an output."""


class Frames:
    """Data frames: inputs and outputs are numbers."""

    def __init__(self, spec: FrameSpec) -> None:
        from treadle.shuffle._agreed import Agreed

        self._agreed = Agreed(spec.meta, spec.column, spec.partitions, drop_column=spec.drop_column)
        self.width = self._agreed.width

    def map_of(self, place: Any) -> int:
        return int(place)

    def partition_of(self, place: Any) -> int:
        return int(place)

    def split(self, data: Any, place: Any) -> _core.Rows:  # noqa: ARG002
        from treadle.shuffle._split import split

        return split(self._agreed, data)

    def assemble(self, pieces: Sequence[Piece]) -> Any:
        from treadle.shuffle._assemble import assemble

        return assemble(self._agreed, pieces)


class Chunks:
    """Chunks of an array: inputs and outputs are their indexes."""

    width = 0

    def __init__(self, spec: ArraySpec) -> None:
        from distributed.shuffle._rechunk import split_axes

        self._spec = spec
        self._count = position([len(axis) - 1 for axis in spec.new], spec.new) + 1
        self._axes = split_axes(spec.old, spec.new)

    def map_of(self, place: Any) -> int:
        return position(place, self._spec.old)

    def partition_of(self, place: Any) -> int:
        return position(place, self._spec.new)

    def split(self, data: Any, place: Any) -> _core.Rows:
        from treadle.shuffle._arrays import split_array

        pieces = []
        for splits in product(*(axis[at] for axis, at in zip(self._axes, place, strict=True))):
            chunk, index, slices = zip(*splits, strict=True)
            pieces.append((self.partition_of(chunk), index, data[slices]))
        return split_array(self._count, pieces)

    def assemble(self, pieces: Sequence[Piece]) -> Any:
        from treadle.shuffle._arrays import assemble_array

        return assemble_array(pieces)


def kind_of(spec: FrameSpec | ArraySpec) -> Kind:
    """Return the kind of a shuffle with this spec."""
    return Frames(spec) if isinstance(spec, FrameSpec) else Chunks(spec)
