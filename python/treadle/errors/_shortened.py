"""Tracebacks without the frames that users did not write."""

from __future__ import annotations

import re
from types import TracebackType

import dask.config

from treadle.errors._own_frames import WAITS

__all__ = ["shortened"]


class shortened:
    """``dask.utils.shorten_traceback``, which cuts Treadle's frames as well.

    The first and the last frame stay. With ``admin.traceback.shorten`` empty, nothing is cut.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        paths = dask.config.get("admin.traceback.shorten")
        if error is None or traceback is None or not paths:
            return
        cut = re.compile(".*(" + "|".join([*paths, WAITS]) + ")")
        kept, current = traceback, traceback.tb_next
        while current is not None:
            if current.tb_next is None or not cut.match(current.tb_frame.f_code.co_filename):
                kept.tb_next = current
                kept = current
            current = current.tb_next
        # A class may forbid to set attributes.
        BaseException.with_traceback(error, traceback)
