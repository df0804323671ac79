"""What a running cast prints and displays."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["Event", "Outputs"]

#: A message's type and content, as Jupyter has them: ``("stream", {"name": …, "text": …})``.
Event = tuple[str, dict[str, Any]]

# Seconds that text waits for more before it is sent.
_PAUSE = 0.05


class Outputs:
    """The outputs of one cast, which are sent while it runs.

    As a context manager it makes what the calling thread prints in the block output.

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

    def __enter__(self) -> None:
        # They stay, and are put there again if somebody has put others in their place.
        if type(sys.stdout) is not _Stream and sys.stdout is not None:
            sys.stdout = _Stream(sys.stdout, "stdout")
        if type(sys.stderr) is not _Stream and sys.stderr is not None:
            sys.stderr = _Stream(sys.stderr, "stderr")
        _outputs_of[threading.get_ident()] = self

    def __exit__(self, *_: object) -> None:
        _outputs_of.pop(threading.get_ident(), None)

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
_outputs_of: dict[int, Outputs] = {}


class _Stream:
    """A standard stream, but for the text of threads whose outputs are captured."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        outputs = _outputs_of.get(threading.get_ident())
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
        return threading.get_ident() not in _outputs_of and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
