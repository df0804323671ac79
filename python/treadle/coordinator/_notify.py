"""Alerts leave the coordinator: to a webhook, and as mail."""

from __future__ import annotations

import json
import logging
import math
import smtplib
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from treadle.coordinator._mail import MailServer
from treadle.coordinator._watching import Alert

__all__ = ["Notifier", "Outgoing"]

_logger = logging.getLogger("treadle.coordinator")
_MOST_WAITING = 1000
_SECONDS = 10.0
# Between two mails, and after a failure.
_PACE = 60.0
_LONGEST_REASON = 300


class Outgoing:
    """What waits to leave by one way. It goes together, ``pace`` seconds apart, and again after a failure.

    Times are seconds of any clock that is not set back.
    """

    def __init__(self, name: str, pace: float, retry: float = _PACE) -> None:
        self.name, self._pace, self._retry = name, pace, retry
        self.waiting: list[Alert] = []
        self.left_out = 0
        """Alerts that are on the page alone: there were too many."""
        self.failure = ""
        """Why the latest attempt failed."""
        self._next = -math.inf

    def add(self, alerts: Sequence[Alert]) -> None:
        """Take alerts; of very many, the first ones wait."""
        free = _MOST_WAITING - len(self.waiting)
        self.waiting += alerts[:free]
        self.left_out += max(0, len(alerts) - free)

    def due_in(self, now: float) -> float | None:
        """Return after how many seconds something is to be sent; None: nothing waits."""
        return max(0.0, self._next - now) if self.waiting else None

    def sent(self, count: int, left_out: int, now: float, problem: str = "") -> None:
        """The first alerts have left, and it was told how many others have not. ``problem``: not to all."""
        del self.waiting[:count]
        self.left_out -= left_out
        self.failure, self._next = problem, now + self._pace

    def failed(self, reason: str, now: float) -> None:
        """They have not: they stay, and are sent again later."""
        self.failure, self._next = reason, now + self._retry

    def notice(self) -> str:
        """Return what the page says of it; an empty text if all is well."""
        if not self.failure:
            return ""
        waiting = f"; {len(self.waiting):,} alerts wait and are sent again" if self.waiting else ""
        return f"{self.name} was not sent: {self.failure}{waiting}"


class Notifier:
    """Sends alerts from a thread of its own. What cannot be sent yet is said by :meth:`notices`."""

    def __init__(self, webhook: str | None, mail: MailServer | None, pace: float = _PACE) -> None:
        if webhook is not None and not webhook.startswith(("http://", "https://")):
            raise ValueError("--webhook must begin with http:// or https://")
        self._webhook, self._mail_server = webhook, mail
        self._ways: list[tuple[Outgoing, Callable[[list[Alert], int], str]]] = []
        if webhook is not None:
            self._ways.append((Outgoing("the webhook", 0.0, pace), self._post))
        if mail is not None:
            self._ways.append((Outgoing("mail", pace, pace), self._mail))
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(
            target=self._send_all, name="coordinator-alerts", daemon=True
        )
        self._thread.start()

    def __call__(self, alerts: Sequence[Alert]) -> None:
        """Have alerts sent; does not wait for that."""
        with self._changed:
            for way, _ in self._ways:
                way.add(alerts)
            self._changed.notify()

    def notices(self) -> list[str]:
        """Return what could not be sent, and why."""
        with self._changed:
            return [told for way, _ in self._ways if (told := way.notice())]

    def close(self) -> None:
        """End when what waits was tried once more, or after ten seconds."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(_SECONDS)

    def _send_all(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                while not self._is_over and (seconds := self._due_in()) != 0.0:
                    self._changed.wait(seconds)
                is_over = self._is_over
            for way, send in self._ways:
                self._send(way, send, is_over)

    def _due_in(self) -> float | None:
        now = time.monotonic()
        return min((due for way, _ in self._ways if (due := way.due_in(now)) is not None), default=None)  # fmt: skip

    def _send(self, way: Outgoing, send: Callable[[list[Alert], int], str], is_last: bool) -> None:
        with self._changed:
            due = way.due_in(time.monotonic())
            if due is None or (due > 0 and not is_last):
                return
            alerts, left_out = list(way.waiting), way.left_out
        try:
            problem = send(alerts, left_out)
        except (OSError, ValueError, smtplib.SMTPException) as error:
            reason = f"{error or type(error).__name__}"[:_LONGEST_REASON]
            _logger.warning("%s was not sent: %s", way.name, reason)
            with self._changed:
                way.failed(reason, time.monotonic())
        else:
            with self._changed:
                way.sent(len(alerts), left_out, time.monotonic(), problem)

    def _post(self, alerts: list[Alert], left_out: int) -> str:
        assert self._webhook is not None
        # `text` is what chat programs show.
        body: dict[str, Any] = {
            "text": "\n".join(_lines(alerts, left_out)),
            "alerts": [{"kind": one.kind, "text": one.text} for one in alerts],
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._webhook, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return ""

    def _mail(self, alerts: list[Alert], left_out: int) -> str:
        assert self._mail_server is not None
        count = len(alerts) + left_out
        subject = alerts[0].text if count == 1 else f"{count:,} alerts"
        refused = self._mail_server.send(
            f"Treadle: {subject}", "\n".join(_lines(alerts, left_out)) + "\n"
        )
        if refused:
            _logger.warning("mail to %s was refused", ", ".join(refused))
        return f"the server refuses {', '.join(refused)}"[:_LONGEST_REASON] if refused else ""


def _lines(alerts: Sequence[Alert], left_out: int) -> list[str]:
    more = [f"{left_out:,} more are on the page alone"] if left_out else []
    return [*(one.text for one in alerts), *more]
