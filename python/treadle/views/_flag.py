"""An event for results of which most have no thread that waits for them."""

from __future__ import annotations

import threading

__all__ = ["Flag"]

_making = threading.Lock()


class Flag:
    """A ``threading.Event`` that is made when somebody waits for it."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake who waits."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; whether it is."""
        with _making:
            if self._event is None:
                self._event = threading.Event()
        # Who sets it now sees the event; who did before has set the flag.
        return self._is_set or self._event.wait(timeout)
