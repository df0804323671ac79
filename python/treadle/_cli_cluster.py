"""What the commands ``treadle scheduler`` and ``treadle worker`` share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import click

from treadle._cli import connection_options

__all__ = ["Credentials", "Ending", "security_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def security_options(command: _Command) -> _Command:
    """Add ``--tls``, ``--insecure`` and ``--secret-file``."""
    secret = click.option(
        "--secret-file",
        type=click.Path(dir_okay=False, exists=True),
        metavar="PATH",
        help="The cluster's secret, in a file of mode 0600; by default TREADLE_SECRET_FILE, or the "
        "user's own.",
    )
    return connection_options(secret(command))


@dataclass(frozen=True)
class Credentials:
    """What lets this process's connections in, and keeps others out."""

    tls: str | None
    insecure: bool

    @classmethod
    def of_options(cls, tls: str | None, insecure: bool, secret_file: str | None) -> Credentials:
        """Take what the options say. The secret stays in its file, for all of this process."""
        if secret_file is not None:
            os.environ["TREADLE_SECRET_FILE"] = os.path.abspath(secret_file)
        return cls(tls, insecure)

    @property
    def certificates(self) -> Mapping[str, str] | None:
        """Paths of the CA, the certificate and its key."""
        if self.tls is None:
            return None
        authority = os.path.join(os.path.dirname(self.tls), "ca.pem")
        return {"ca": authority, "certificate": f"{self.tls}.pem", "key": f"{self.tls}-key.pem"}

    def address(self, address: str) -> str:
        """Return an address with its scheme."""
        if "://" in address:
            return address
        return f"treadle+tls://{address}" if self.tls else f"treadle://{address}"

    def of_connections(self) -> dict[str, Any]:
        """Return the keyword arguments of connections that say this."""
        return {"certificates": self.certificates, "insecure": self.insecure}


class Ending:
    """How often this process was asked to end: by SIGTERM, which asks politely, or by SIGINT.

    ``Ending.asked`` is set by the first of either, ``Ending.now`` by SIGINT and by a second SIGTERM.

    Parameters
    ----------
    interrupt
        Called with SIGINT, in the main thread: says whether it was meant for something else, or
        raises ``KeyboardInterrupt`` in it.
    """

    def __init__(self, interrupt: Callable[[], bool] = lambda: False) -> None:
        self.asked = self.now = False
        self._interrupt = interrupt
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupt():
            return
        self.now = self.asked or number == signal.SIGINT
        self.asked = True
