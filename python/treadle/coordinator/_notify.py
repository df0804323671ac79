"""Alerts leave the coordinator: to a webhook, and as mail."""

from __future__ import annotations

import json
import logging
import queue
import smtplib
import threading
import urllib.request
from collections.abc import Sequence
from email.message import EmailMessage

from treadle.coordinator._watching import Alert

__all__ = ["Notifier"]

_logger = logging.getLogger("treadle.coordinator")
_MOST_WAITING = 1000
_SECONDS = 10.0


class Notifier:
    """Sends alerts from a thread of its own. What cannot be sent is logged: the page has it."""

    def __init__(self, webhook: str | None, mails: Sequence[str], smtp: str | None) -> None:
        if webhook is not None and not webhook.startswith(("http://", "https://")):
            raise ValueError("--webhook must begin with http:// or https://")
        self._webhook, self._mails, self._smtp = webhook, mails, smtp
        self._waiting: queue.Queue[Sequence[Alert] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(
            target=self._send_all, name="coordinator-alerts", daemon=True
        )
        self._thread.start()

    def __call__(self, alerts: Sequence[Alert]) -> None:
        """Have alerts sent; does not wait."""
        if self._webhook is None and self._smtp is None:
            return
        try:
            self._waiting.put_nowait(alerts)
        except queue.Full:
            _logger.warning("%d alerts wait to be sent: these are on the page alone", _MOST_WAITING)

    def close(self) -> None:
        """End when what waits is sent, or after ten seconds."""
        try:
            self._waiting.put(None, timeout=_SECONDS)
        except queue.Full:
            return
        self._thread.join(_SECONDS)

    def _send_all(self) -> None:
        while (alerts := self._waiting.get()) is not None:
            for send in (self._post, self._mail):
                try:
                    send(alerts)
                except (OSError, ValueError, smtplib.SMTPException) as error:
                    _logger.warning("alerts could not be sent: %s", error)

    def _post(self, alerts: Sequence[Alert]) -> None:
        if self._webhook is None:
            return
        # `text` is what chat programs show.
        body = {
            "text": "\n".join(one.text for one in alerts),
            "alerts": [{"kind": one.kind, "text": one.text} for one in alerts],
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._webhook, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass

    def _mail(self, alerts: Sequence[Alert]) -> None:
        if self._smtp is None:
            return
        message = EmailMessage()
        # A name of a job may have line breaks, which a header may not.
        message["Subject"] = " ".join(f"Treadle: {alerts[0].text}".split())[:200]
        message["From"], message["To"] = "treadle-coordinator@localhost", ", ".join(self._mails)
        message.set_content("\n".join(one.text for one in alerts))
        host, _, port = self._smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=_SECONDS) as server:
            server.send_message(message)
