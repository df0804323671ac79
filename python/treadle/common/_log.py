"""The last lines of a process's log and of its standard error.

They explain the end of a worker to those whose tasks it ran, so they are kept in memory, a bounded
number of bytes, also where nobody configured logging.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TextIO, cast

import dask

__all__ = ["OF_NANNIES", "Log", "Tail", "silence"]

_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
_LOGGERS = ("distributed", "treadle")
#: What the log of a worker's nanny has.
OF_NANNIES = ("distributed.nanny", "treadle.nanny")


def _told(text: str) -> str:
    """Return a formatted record without its time and level, which are told beside it."""
    _, name, _, message = (*text.split(" - ", 3), "", "", "")[:4]
    return f"{name} - {message}" if message else text


# The least level of what logs themselves write to standard error.
_least = logging.NOTSET


def silence(level: int) -> None:
    """Have loggers of distributed and Treadle write nothing below a level to standard error.

    It is for a process that is a worker, and nothing else. What is kept is not less.
    """
    global _least
    _least = level
    for handler in logging.getLogger("distributed").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(level)


class Tail:
    """The last bytes of a text that is written piece by piece."""

    def __init__(self, limit: int = 16 * 1024) -> None:
        self._limit = limit
        self._pieces: deque[str] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Append a text."""
        text = text[-self._limit :]
        with self._lock:
            self._pieces.append(text)
            self._size += len(text)
            while self._size - len(self._pieces[0]) >= self._limit:
                self._size -= len(self._pieces.popleft())

    def text(self) -> str:
        """Return the last whole lines, at most the limit in bytes."""
        with self._lock:
            text = "".join(self._pieces)
        encoded = text.encode("utf-8", "replace")
        if len(encoded) <= self._limit:
            return text
        last = encoded[-self._limit :].decode("utf-8", "ignore")
        return last.partition("\n")[2] or last


class _Tee:
    """Standard error, which is kept as well."""

    def __init__(self, stream: TextIO, tail: Tail) -> None:
        self._stream = stream
        self._tail = tail

    def write(self, text: str) -> int:
        # First of all: it refuses what is no text, and whoever tries that goes on (click does).
        written = self._stream.write(text)
        self._tail.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Log(logging.Handler):
    """Keeps the records of loggers, by default those of distributed and Treadle.

    ``with_stderr``, what goes to standard error, too, is for a process that is a worker and nothing
    else.
    """

    def __init__(self, *, with_stderr: bool = False, loggers: Sequence[str] = _LOGGERS) -> None:
        super().__init__()
        self._loggers = loggers
        self.setFormatter(logging.Formatter(_FORMAT))
        longest = dask.config.get("distributed.admin.log-length", 10_000)
        # As text: records hold arguments and tracebacks, and those hold what users let go of.
        self._entries: deque[tuple[float, str, str]] = deque(maxlen=longest)
        self._tail = Tail()
        self._listener: Callable[[int, str], None] | None = None
        self._stderr: TextIO | None = None
        for name in loggers:
            logging.getLogger(name).addHandler(self)
        if with_stderr and sys.stderr is not None:
            self._stderr = sys.stderr
            sys.stderr = cast("TextIO", _Tee(sys.stderr, self._tail))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        text = self.format(record)
        self._entries.append((record.created, record.levelname, text))
        if (listener := self._listener) is not None:
            listener(record.levelno, _told(text))
        # Not through standard error: logging's own handler took hold of the stream before this did.
        self._tail.write(text + "\n")
        last_resort = logging.lastResort
        if (
            last_resort is not None
            and record.levelno >= max(last_resort.level, _least)
            and self._is_alone(record)
        ):
            # Logging tells people itself only where nobody handles a record.
            last_resort.handle(record)

    def listen(self, listener: Callable[[int, str], None] | None) -> None:
        """Have the level and the text of each record told, of those that there are, too."""
        if listener is not None:
            for _, level, text in list(self._entries):
                listener(getattr(logging, level, 0), _told(text))
        self._listener = listener

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """Whether nobody but the first log, which this is, handles a record."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        first: Log | None = None
        while logger is not None:
            for handler in logger.handlers:
                if not isinstance(handler, Log):
                    return False
                first = first or handler
            logger = logger.parent if logger.propagate else None
        return first is self

    def entries(self, start: float, n: int | None, timestamps: bool) -> tuple[Any, ...]:
        """Return (time,) level and text of the last records since a time, newest first."""
        found: list[tuple[Any, ...]] = []
        for created, level, text in reversed(list(self._entries)):
            if created < start or (n and len(found) >= n):
                break
            found.append((created, level, text) if timestamps else (level, text))
        return tuple(found)

    def text(self) -> str:
        """Return the last lines."""
        return self._tail.text()

    def close(self) -> None:
        """Stop keeping; what is kept stays readable."""
        for name in self._loggers:
            logging.getLogger(name).removeHandler(self)
        if self._stderr is not None and isinstance(sys.stderr, _Tee):
            sys.stderr = self._stderr
        super().close()


def _after_fork() -> None:
    """Let the child write to standard error itself: the parent's threads may have held locks here."""
    for name in (*_LOGGERS, *OF_NANNIES):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, Log):
                handler._tail = Tail()
                handler._listener = None
    if isinstance(sys.stderr, _Tee):
        sys.stderr = sys.stderr._stream


os.register_at_fork(after_in_child=_after_fork)
