"""A server of SMTP in this process, with STARTTLS, logins, and failures that a test asks for."""

from __future__ import annotations

import base64
import email
import email.policy
import queue
import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path


@dataclass
class Received:
    """A message, and how it came."""

    message: EmailMessage
    sender: str
    receivers: list[str]
    by_tls: bool
    user: str

    @property
    def lines(self) -> list[str]:
        return self.message.get_content().splitlines()


@dataclass
class Mailbox:
    """Use it with ``with``. With certificates it offers STARTTLS, or has TLS from the first byte on (``is_tls``)."""

    certificates: Path | None = None
    """A folder as `treadle certs` makes it, with those of ``mail``."""
    is_tls: bool = False
    login: tuple[str, str] | None = None
    unknown: tuple[str, ...] = ()
    """Receivers that it does not take."""
    is_busy: bool = False
    """It takes no message now."""
    received: queue.Queue[Received] = field(default_factory=queue.Queue)
    commands: list[str] = field(default_factory=list)

    def __enter__(self) -> Mailbox:
        self._server = _Server(("127.0.0.1", 0), _Session)
        self._server.mailbox = self
        self._server.context = None
        if self.certificates is not None:
            self._server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            files = (self.certificates / "mail.pem", self.certificates / "mail-key.pem")
            self._server.context.load_cert_chain(*files)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def next(self) -> Received:
        return self.received.get(timeout=60)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    mailbox: Mailbox
    context: ssl.SSLContext | None


class _Session(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.box = self.server.mailbox
        self.user, self.sender, self.receivers = "", "", []
        try:
            self.by_tls = False
            self.socket, self.lines = self.request, self.request.makefile("rb")
            if self.box.is_tls:
                self.begin_tls()
            self.say("220 here")
            while line := self.lines.readline().decode().strip():
                word = line.split()[0].upper()
                self.box.commands.append(word)
                if not self.take(word, line):
                    break
        except OSError:
            # Whoever does not trust the certificate goes away.
            pass

    def begin_tls(self) -> None:
        assert self.server.context is not None
        self.socket = self.server.context.wrap_socket(self.socket, server_side=True)
        self.lines = self.socket.makefile("rb")
        self.by_tls = True

    def say(self, *lines: str) -> None:
        self.socket.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def take(self, word: str, line: str) -> bool:
        """Answer a command; return whether more may come."""
        if word in ("EHLO", "HELO"):
            offers = ["250-here"]
            if self.server.context is not None and not self.by_tls:
                offers.append("250-STARTTLS")
            if self.box.login is not None:
                offers.append("250-AUTH PLAIN")
            self.say(*offers, "250 SIZE 1000000")
        elif word == "STARTTLS":
            self.say("220 go on")
            self.begin_tls()
        elif word == "AUTH":
            _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
            is_right = (user, password) == self.box.login
            self.user = user if is_right else ""
            self.say("235 right" if is_right else "535 wrong")
        elif word == "MAIL":
            if self.box.login is not None and not self.user:
                self.say("530 log in")
            else:
                self.sender = line.partition("<")[2].partition(">")[0]
                self.say("250 yes")
        elif word == "RCPT":
            receiver = line.partition("<")[2].partition(">")[0]
            if receiver in self.box.unknown:
                self.say("550 nobody")
            else:
                self.receivers.append(receiver)
                self.say("250 yes")
        elif word == "DATA":
            self.data()
        else:
            self.say("221 bye" if word == "QUIT" else "250 yes")
        return word != "QUIT"

    def data(self) -> None:
        self.say("354 go on")
        text = []
        while (line := self.lines.readline()) not in (b".\r\n", b""):
            text.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        if self.box.is_busy:
            self.say("451 try again later")
            return
        message = email.message_from_bytes(b"".join(text), policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        told = Received(message, self.sender, self.receivers, self.by_tls, self.user)
        self.box.received.put(told)
        self.say("250 taken")
