"""Lines of the audit log about logins and refusals: whoever knocks again and again does not fill it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from treadle.coordinator._access import Who
from treadle.coordinator._jobs import kept_text
from treadle.coordinator._service import Coordinator

__all__ = ["Logins", "Refusals"]


class Refusals:
    """Says which refusals are written: at most so many in so many seconds; the next one counts those between."""

    def __init__(self, most: int = 20, seconds: float = 60.0) -> None:
        self._most, self._seconds = most, seconds
        self._begun, self._written, self._left_out = 0.0, 0, 0
        self._lock = threading.Lock()

    def take(self, now: float) -> int | None:
        """Take a refusal; return how many before it were not written, or None: this one is not, either."""
        with self._lock:
            if not self._begun <= now < self._begun + self._seconds:
                self._begun, self._written = now, 0
            if self._written >= self._most:
                self._left_out += 1
                return None
            self._written += 1
            left_out, self._left_out = self._left_out, 0
            return left_out


class Logins:
    """Writes who logged in and out, and who was refused. It waits for nothing."""

    def __init__(
        self, coordinator: Coordinator, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._coordinator, self._clock = coordinator, clock
        self._refusals = Refusals()

    def logged_in(self, request: Request, who: Who) -> None:
        """Somebody has logged in with a token."""
        self._note(request, who.name, "logged in", {"role": who.role})

    def logged_out(self, request: Request, who: Who) -> None:
        """Somebody has logged out."""
        self._note(request, who.name, "logged out", {})

    def refused(self, request: Request, who: Who | None, why: str) -> None:
        """Somebody was refused: with a token that nobody has, or for want of a role."""
        left_out = self._refusals.take(self._clock())
        if left_out is None:
            return
        path = request.url.path
        # The path of the webhook may have a token.
        path = "/webhook" if path.startswith("/webhook/") else kept_text(path[:200])
        body: dict[str, Any] = {"path": path, "why": why}
        if left_out:
            body["others"] = left_out
        self._note(request, who.name if who else "unknown", "refused", body)

    def _note(self, request: Request, who: str, what: str, body: dict[str, Any]) -> None:
        peer = request.client.host if request.client else ""
        self._coordinator.note_later(who, what, peer, body)
