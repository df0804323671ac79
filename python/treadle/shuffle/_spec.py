"""The spec of a shuffle, from the graph to the workers.

Dask's ``P2PBarrierTask`` has a ``spec``. The client encodes it (:func:`describe`), the scheduler passes the
bytes on, and each worker decodes them once (:func:`read_spec`).
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.shuffle._pickles import dumps

if TYPE_CHECKING:
    import pandas as pd

    from treadle._compat.distributed import ShuffleSpec

Chunks = tuple[tuple[float, ...], ...]

# Treadle's messages have so many entries in a list at most.
_MOST = 2**20

# What workers must know of a shuffle is in one message to each, and in one to the scheduler, which
# have 256 MiB at most.
_MOST_BYTES = 255 << 20


@dataclass(frozen=True)
class FrameSpec:
    """A shuffle of data frames."""

    meta: pd.DataFrame
    column: Any
    partitions: int
    drop_column: bool


@dataclass(frozen=True)
class ArraySpec:
    """A shuffle of chunks: the sizes along each axis, before and after it."""

    old: Chunks
    new: Chunks


def describe(spec: ShuffleSpec[Any]) -> tuple[int, list[tuple[int, int]], bytes]:
    """Return the number of partitions, ranges of those that are read, and the spec for workers.

    Ranges are ascending, each from its first partition to before its end. Raises ``TypeError`` for
    a spec of another kind of shuffle, and ``ValueError`` if a partition that is read does not exist, or
    if the meta (or the chunks) are too large for a message.
    """
    from treadle._compat.distributed import ArrayRechunkSpec, DataFrameShuffleSpec

    told: FrameSpec | ArraySpec
    if isinstance(spec, DataFrameShuffleSpec):
        partitions = int(spec.npartitions)
        outputs = ranges(spec.output_partitions)
        told = FrameSpec(spec.meta.iloc[:0], spec.column, partitions, spec.drop_column)
    elif isinstance(spec, ArrayRechunkSpec):
        partitions = math.prod(map(len, spec.new))
        outputs = [(0, partitions)] if partitions else []
        told = ArraySpec(spec.old, spec.new)
    else:
        raise TypeError(
            f"Shuffle {spec.id} is of an unknown kind: {type(spec).__name__}. "
            "Treadle shuffles data frames, and rechunks arrays."
        )
    try:
        check_partitions(partitions)
        data = encode(told)
    except ValueError as error:
        raise ValueError(f"Shuffle {spec.id}: {error}. The method tasks may do it.") from None
    if outputs and (outputs[0][0] < 0 or outputs[-1][1] > partitions):
        raise ValueError(
            f"Shuffle {spec.id} has {partitions} partitions, and its graph reads others: "
            f"{outputs[0][0]} to {outputs[-1][1] - 1}."
        )
    return partitions, outputs, data


def check_partitions(partitions: int) -> None:
    """Raise ``ValueError`` for more partitions than a shuffle can have."""
    if partitions > _MOST:
        raise ValueError(f"it has {partitions} partitions, and at most {_MOST} are possible")


def encode(told: FrameSpec | ArraySpec) -> bytes:
    """Return what workers are told, or raise ``ValueError`` if that is too much."""
    data = dumps(told)
    if len(data) > _MOST_BYTES:
        raise ValueError(
            f"what its meta or chunks say takes {len(data)} bytes, and each worker is sent "
            f"{_MOST_BYTES} at most. If columns have very many categories, shuffle their values as "
            "text or numbers"
        )
    return data


def read_spec(data: bytes) -> FrameSpec | ArraySpec:
    """Return the spec that :func:`describe` encoded."""
    told = pickle.loads(data)
    assert isinstance(told, FrameSpec | ArraySpec)
    return told


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ascending ranges, each from its first number to before its end."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(map(int, numbers))):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def position(index: Sequence[int], chunks: Chunks) -> int:
    """Return the row-major position of a chunk's index."""
    at = 0
    for place, axis in zip(index, chunks, strict=True):
        at = at * len(axis) + place
    return at
