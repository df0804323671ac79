"""What forked children of this process do not hold: the ends that tell others that it is over.

A worker process ends when nobody has the other end of its standard input. A child that had a copy (that of
a ``ProcessPoolExecutor``, say) would keep the worker.

``treadle_memory::withhold`` does the same for descriptors that Rust closes. It must be told before each is
closed; these are closed by their Python objects, which are asked for their numbers at the fork instead.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from typing import IO

__all__ = ["withhold"]

_ends: weakref.WeakSet[IO[bytes] | socket.socket] = weakref.WeakSet()


def withhold(end: IO[bytes] | socket.socket) -> None:
    """From now on, a forked child has something harmless in the place of this descriptor."""
    _ends.add(end)


def _after_fork() -> None:
    if not _ends:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for end in list(_ends):
        # One that is closed has no descriptor: a socket says -1, a file raises.
        with suppress(ValueError):
            if (number := end.fileno()) >= 0:
                # The number stays taken, since the object closes it some time.
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    _ends.clear()


os.register_at_fork(after_in_child=_after_fork)
