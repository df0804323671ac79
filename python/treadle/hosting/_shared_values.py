"""Values that Dask's scheduler sends to many of its workers at once, as they travel and arrive.

A worker of Treadle takes them, and hands them over to the worker of Dask in its process.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Hashable, Mapping
from typing import Any

from distributed.utils import nbytes

from treadle._compat.distributed import decompress, merge_and_deserialize, merge_memoryviews
from treadle.common._loop import off_loop

__all__ = ["Parcel", "enter", "hand_over", "leave"]

# Dask's workers in this process, by Treadle's scheduler and their name.
_workers: dict[tuple[str, str], Any] = {}


class Parcel:
    """A value as it is on Dask's wire. Its frames travel without a copy."""

    def __init__(self, header: Mapping[str, Any], frames: list[Any]) -> None:
        self._header = header
        self._frames = frames

    @classmethod
    def of(cls, serialized: Any) -> Parcel:
        """Return what Dask's scheduler has of a value, in as few pieces as possible.

        What came in one piece of memory would be copied where it is put together.
        """
        header, frames = serialized.header, serialized.frames
        if "split-num-sub-frames" not in header or any(header.get("compression") or ()):
            return cls(header, frames)
        counts, offsets = header["split-num-sub-frames"], header["split-offsets"]
        parts = [frames[at : at + n] for n, at in zip(counts, offsets, strict=True)]
        try:
            merged = [merge_memoryviews(part) for part in parts]
        except (TypeError, ValueError):
            return cls(header, frames)
        kept = header.keys() - {"compression", "split-num-sub-frames", "split-offsets"}
        return cls({name: header[name] for name in kept}, merged)

    @property
    def nbytes(self) -> int:
        return sum(map(nbytes, self._frames))

    def open(self) -> Any:
        """Return the value, a view of what came where that is possible."""
        # Some of the functions that read a header change it.
        header = pickle.loads(pickle.dumps(self._header))
        frames = self._frames
        if "compression" in header:
            frames = decompress(header, frames)
        return merge_and_deserialize(header, frames)

    def __reduce__(self) -> Any:
        return Parcel, (self._header, [pickle.PickleBuffer(frame) for frame in self._frames])


def enter(scheduler: str, worker: Any) -> None:
    """Have a worker of Dask, in this process, take values."""
    _workers[scheduler, str(worker.name)] = worker


def leave(scheduler: str, worker: Any) -> None:
    """Undo :func:`enter`."""
    _workers.pop((scheduler, str(worker.name)), None)


async def hand_over(
    objects: list[int], little: Mapping[Hashable, Parcel], dask_worker: Any
) -> tuple[str, dict[Hashable, int]]:
    """Give the worker of Dask in this process what this worker of Treadle has got.

    Parameters
    ----------
    objects
        Names of dictionaries of parcels by key that are here.
    little
        Further parcels.
    dask_worker
        Treadle's worker, as :meth:`distributed.Client.run` gives it.

    Returns
    -------
    The address of Dask's worker, and how many bytes each value takes.
    """
    worker = _workers[dask_worker.scheduler.address, str(dask_worker.name)]
    values = await off_loop(_opened, objects, little, dask_worker)

    async def take() -> Any:
        return worker.update_data(data=values)

    taken = asyncio.run_coroutine_threadsafe(take(), worker.loop.asyncio_loop)
    answer = await asyncio.wrap_future(taken)
    return worker.address, answer["nbytes"]


def _opened(objects: list[int], little: Mapping[Hashable, Parcel], here: Any) -> dict[Any, Any]:
    parcels = dict(little)
    for one in objects:
        parcels |= here._native.get_object(one)
    return {key: parcel.open() for key, parcel in parcels.items()}
