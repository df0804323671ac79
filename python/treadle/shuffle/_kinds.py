"""What is shuffled: data frames, or the chunks of an array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from treadle.shuffle._spec import ArraySpec, FrameSpec, position

if TYPE_CHECKING:
    from treadle import _core
    from treadle._compat.distributed import Split, SplitAxes, SplitAxis
    from treadle.shuffle._piece import Piece


# The most elements of a piece. Larger ones are cut: a piece is one row, and must have less than 2 GiB.
_ELEMENTS = 1 << 26


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
        from treadle.shuffle._common_plan import Agreed

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
        from treadle._compat.distributed import split_axes

        self._spec = spec
        self._count = position([len(axis) - 1 for axis in spec.new], spec.new) + 1
        self._axes = _cut(split_axes(spec.old, spec.new), _ELEMENTS)

    def map_of(self, place: Any) -> int:
        return position(place, self._spec.old)

    def partition_of(self, place: Any) -> int:
        return position(place, self._spec.new)

    def split(self, data: Any, place: Any) -> _core.Rows:
        from treadle.shuffle._arrays import split_array

        return split_array(self._count, self.pieces(data, place))

    def pieces(self, data: Any, place: Any) -> Iterator[tuple[int, tuple[int, ...], Any]]:
        """Yield the pieces of a chunk: the output of each, its index in that, and itself."""
        for splits in product(*(axis[at] for axis, at in zip(self._axes, place, strict=True))):
            chunk, index, slices = zip(*splits, strict=True)
            yield self.partition_of(chunk), index, data[slices]

    def assemble(self, pieces: Sequence[Piece]) -> Any:
        from treadle.shuffle._arrays import assemble_array

        return assemble_array(pieces)


def _cut(axes: SplitAxes, most: int) -> SplitAxes:
    """Return these pieces, or smaller ones, so that no piece of an array has more than ``most`` elements.

    Later axes stay whole as long as possible: their elements are next to each other.
    """
    cut = []
    rest = most
    for axis in reversed(axes):
        longest = max((_length(split) for chunk in axis for split in chunk), default=1)
        if longest > rest:
            axis = _cut_axis(axis, max(1, rest))
        rest //= max(1, min(longest, rest))
        cut.append(axis)
    return cut[::-1]


def _cut_axis(axis: SplitAxis, most: int) -> SplitAxis:
    # How many pieces each new chunk has so far. Earlier ones are of earlier old chunks.
    counts: Counter[int] = Counter()
    cut = []
    for chunk in axis:
        pieces = []
        for split in chunk:
            start = split.slice.start
            stop = start + _length(split)
            # A piece without elements stays one.
            for begin in range(start, max(stop, start + 1), most):
                is_whole = stop - start <= most
                where = split.slice if is_whole else slice(begin, min(begin + most, stop))
                place = counts[split.chunk_index]
                counts[split.chunk_index] += 1
                pieces.append(type(split)(split.chunk_index, place, where))
        cut.append(pieces)
    return cut


def _length(split: Split) -> int:
    """Return the length of a piece along an axis. 1 if it is not known: such a piece stays whole."""
    stop = split.slice.stop
    return 1 if stop is None else stop - split.slice.start


def kind_of(spec: FrameSpec | ArraySpec) -> Kind:
    """Return the kind of a shuffle with this spec."""
    return Frames(spec) if isinstance(spec, FrameSpec) else Chunks(spec)
