"""Parts of Treadle that are made in a thread beside an event loop, which may end meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from treadle.common._loop import off_loop

__all__ = ["made"]


class _Part(Protocol):
    def close(self) -> None: ...


_P = TypeVar("_P", bound=_Part)


async def made(make: Callable[[], _P], is_wanted: Callable[[], bool]) -> _P | None:
    """Make a part; close it, and return None, if it is not wanted any more once it is there.

    So it is if the caller is cancelled: nothing is left running.
    """
    lock = threading.Lock()
    is_cancelled = False
    parts: list[_P] = []

    def begin() -> None:
        part = make()
        with lock:
            is_kept = not is_cancelled and is_wanted()
            if is_kept:
                parts.append(part)
        if not is_kept:
            part.close()

    try:
        await off_loop(begin)
    except asyncio.CancelledError:
        with lock:
            is_cancelled = True
        for part in parts:
            threading.Thread(target=part.close, name="treadle-unwanted").start()
        raise
    return parts[0] if parts else None
