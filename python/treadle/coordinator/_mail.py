"""A server for mail: how it is reached, who logs in there, and messages that it takes."""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import urlsplit

from treadle.coordinator._access import check_mode
from treadle.coordinator._asking import is_loopback

__all__ = ["DEFAULT_SENDER", "MailServer", "read_login"]

_SECONDS = 10.0
_USER, _PASSWORD = "TREADLE_COORDINATOR_SMTP_USER", "TREADLE_COORDINATOR_SMTP_PASSWORD"
DEFAULT_SENDER = "treadle-coordinator@localhost"


def read_login(path: Path | None, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a user and a password: of a file with ``USER PASSWORD``, else of the environment; None: there is neither.

    Raises
    ------
    ValueError
        Others can read the file, or it has no such line; the environment has one of both. No password is in the message.
    """
    if path is not None:
        check_mode(path)
        words = path.read_text("utf-8", "replace").strip().split(None, 1)
        if len(words) != 2 or "\n" in words[1]:
            raise ValueError(f"{path} must have one line: USER PASSWORD")
        return words[0], words[1]
    user, password = environment.get(_USER), environment.get(_PASSWORD)
    if bool(user) != bool(password):
        raise ValueError(f"{_USER} and {_PASSWORD} need each other")
    return (user, password) if user and password else None


@dataclass(frozen=True)
class MailServer:
    """Where mail goes, by SMTP."""

    host: str
    port: int
    is_tls: bool
    """It speaks TLS from the first byte on; others do after STARTTLS."""
    login: tuple[str, str] | None = field(repr=False)
    sender: str
    receivers: tuple[str, ...]

    @classmethod
    def of(
        cls,
        url: str,
        receivers: Sequence[str],
        login: tuple[str, str] | None = None,
        sender: str = DEFAULT_SENDER,
    ) -> MailServer:
        """Return the server of ``smtp://HOST[:PORT]``, ``smtps://HOST[:PORT]``, or ``HOST[:PORT]``.

        Raises
        ------
        ValueError
            It is no such URL, or an address is none.
        """
        told = urlsplit(url if "://" in url else f"smtp://{url}")
        if told.scheme not in ("smtp", "smtps") or not told.hostname or told.path.strip("/"):
            raise ValueError("--smtp must be smtp://HOST[:PORT] or smtps://HOST[:PORT]")
        if told.username is not None:
            # Arguments can be seen by all users of the machine.
            raise ValueError(
                f"--smtp has a login: give --smtp-login-file FILE, or {_USER} and {_PASSWORD}"
            )
        is_tls = told.scheme == "smtps"
        port = told.port or (465 if is_tls else 587 if login else 25)
        found = cls(told.hostname, port, is_tls, login, sender, tuple(receivers))
        # It raises ValueError for addresses that no header can have.
        found._message("", "")
        return found

    def send(self, subject: str, text: str) -> list[str]:
        """Send a message; return the receivers that the server does not take. Waits for some seconds.

        Without TLS nothing is sent to another host that offers STARTTLS, and no password to any.

        Raises
        ------
        OSError, smtplib.SMTPException, ValueError
            It was not sent.
        """
        message = self._message(subject, text)
        server = self._connected()
        try:
            if self.login is not None:
                server.login(*self.login)
            refused = server.send_message(message)
        except BaseException:
            server.close()
            raise
        # It is sent: what goes wrong now must not send it again.
        with contextlib.suppress(OSError, smtplib.SMTPException):
            server.quit()
        server.close()
        return sorted(refused)

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self.is_tls:
            return smtplib.SMTP_SSL(self.host, self.port, timeout=_SECONDS, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=_SECONDS)
        try:
            server.ehlo_or_helo_if_needed()
            is_offered = server.has_extn("starttls")
            if self.login is not None and not is_offered:
                raise ValueError(
                    f"{self.host} offers no STARTTLS, and a password goes by TLS alone"
                )
            # On this machine a certificate proves nothing, and is often one that nobody trusts.
            if self.login is not None or (is_offered and not is_loopback(self.host)):
                server.starttls(context=context)
        except BaseException:
            server.close()
            raise
        return server

    def _message(self, subject: str, text: str) -> EmailMessage:
        message = EmailMessage()
        # A name of a job may have line breaks, which a header may not.
        message["Subject"] = " ".join(subject.split())[:200]
        message["From"], message["To"] = self.sender, ", ".join(self.receivers)
        message.set_content(text)
        return message
