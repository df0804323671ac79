"""What is told to people by threads that must not wait for them.

Standard error may be a pipe that nobody reads: then whoever writes to it waits for ever. The threads
that look after worker processes hand over what they have to say, to one that may wait.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

__all__ = ["aside", "print_aside", "wait_for_asides"]

# What may wait; the rest is dropped.
_MOST = 2000


class _Aside:
    """Calls functions in their order, in a thread of its own."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._dropped = 0
        self._busy = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="treadle-aside", daemon=True).start()

    def put(self, tell: Callable[[], object]) -> None:
        with self._changed:
            if len(self._waiting) < _MOST:
                self._waiting.append(tell)
                self._changed.notify_all()
            else:
                self._dropped += 1

    def wait(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting))
                tell = self._waiting.popleft()
                dropped, self._dropped = self._dropped, 0
                self._busy = True
            with suppress(Exception):
                tell()
            if dropped:
                _write(f"treadle: {dropped} lines were dropped: nobody read them\n")


def aside(tell: Callable[[], object]) -> None:
    """Have something called soon that may wait for whoever reads what it writes."""
    _get().put(tell)


def print_aside(text: str) -> None:
    """Have a text written to standard error soon."""
    _get().put(lambda: _write(text))


def wait_for_asides(timeout: float) -> None:
    """Wait until all of it was told, but for no longer than ``timeout`` seconds."""
    if _aside is not None:
        _aside.wait(timeout)


def _write(text: str) -> None:
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    is_own = stream is sys.__stderr__
    with suppress(Exception):
        if not is_own:
            stream.write(text)
            return
        # Without the lock of the stream: the interpreter needs it when it ends.
        rest = text.encode(stream.encoding, "backslashreplace")
        while rest:
            rest = rest[os.write(stream.fileno(), rest) :]


_aside: _Aside | None = None
_making = threading.Lock()


def _get() -> _Aside:
    global _aside
    with _making:
        if _aside is None:
            _aside = _Aside()
        return _aside


def _after_fork() -> None:
    """Let the child have a thread of its own."""
    global _aside, _making
    _aside, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
