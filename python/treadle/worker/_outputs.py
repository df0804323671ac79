"""What a running cast prints and displays."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["CapturingStream", "Event", "Outputs", "capture", "put_streams", "release"]

#: A message's type and content, as Jupyter has them: ``("stream", {"name": …, "text": …})``.
Event = tuple[str, dict[str, Any]]

# Seconds that text waits for more before it is sent.
_PAUSE = 0.05


def capture(outputs: Callable[[], Outputs | None]) -> None:
    """Make what the calling thread prints from now on output of what it runs then, if it does.

    As long as the streams are those of :func:`put_streams`.
    """
    _outputs_of[threading.get_ident()] = outputs


def put_streams() -> None:
    """Put the streams in their places that capture, if somebody has put others there."""
    if type(sys.stdout) is not CapturingStream and sys.stdout is not None:
        sys.stdout = CapturingStream(sys.stdout, "stdout")
    if type(sys.stderr) is not CapturingStream and sys.stderr is not None:
        sys.stderr = CapturingStream(sys.stderr, "stderr")


def release() -> None:
    """Capture nothing of the calling thread any more."""
    _outputs_of.pop(threading.get_ident(), None)


class Outputs:
    """The outputs of one cast, which are sent while it runs.

    Parameters
    ----------
    send
        Called with the number of the first event and the events, in any thread.
    later
        Calls a function after so many seconds.
    """

    def __init__(
        self,
        send: Callable[[int, list[Event]], None],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._send = send
        self._later = later
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._sent = 0
        self._scheduled = self._closed = False

    def write(self, name: str, text: str) -> None:
        """Add text of a stream."""
        if not text:
            return
        with self._lock:
            if self._sent < len(self._events):
                kind, content = self._events[-1]
                if kind == "stream" and content["name"] == name:
                    content["text"] += text
                    return
        self.add("stream", {"name": name, "text": text})

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """Add an event."""
        with self._lock:
            self._events.append((kind, content))
            if self._scheduled or self._closed:
                return
            self._scheduled = True
        self._later(_PAUSE, self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._scheduled = False
            first, self._sent = self._sent, len(self._events)
            fresh = self._events[first:]
            if self._closed or not fresh:
                return
            # Under the lock: the next events come after these.
            self._send(first, fresh)

    def close(self) -> list[Event]:
        """Send no more, and return all that there was."""
        with self._lock:
            self._closed = True
            return self._events


# Where what a thread prints goes.
_outputs_of: dict[int, Callable[[], Outputs | None]] = {}


def _outputs_here() -> Outputs | None:
    """Return the outputs of what the calling thread runs, if they are captured."""
    find = _outputs_of.get(threading.get_ident())
    return None if find is None else find()


class CapturingStream:
    """A standard stream, but for the text of threads whose outputs are captured."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        outputs = _outputs_here()
        if outputs is None:
            return self._stream.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        outputs.write(self._name, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return _outputs_here() is None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# What a forked child prints is no part of what its parent runs.
os.register_at_fork(after_in_child=_outputs_of.clear)
