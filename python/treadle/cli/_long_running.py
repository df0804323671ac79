"""What the commands share that run until they are told to end, such as ``treadle worker``."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from treadle.cli._basics import announce, connection_options, listening
from treadle.cli._values import checked_address, file_to_write
from treadle.cluster._pages import resolved
from treadle.common import _scheduler_file
from treadle.common._secret import keep_user_file

__all__ = [
    "Credentials",
    "Ending",
    "LogFile",
    "http_option",
    "http_token_option",
    "journal_option",
    "log_options",
    "pages_of",
    "say_pages",
    "scheduler_of",
    "security_options",
    "supervised_option",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])
# How long a log file becomes.
_SIZE = "10MB"


def security_options(command: _Command) -> _Command:
    """Add ``--tls``, ``--insecure`` and ``--secret-file``."""
    secret = click.option(
        "--secret-file",
        type=click.Path(dir_okay=False, exists=True),
        metavar="PATH",
        help="The cluster's secret, in a file of mode 0600; by default TREADLE_SECRET_FILE, or the "
        "user's own, and with --tls none.",
    )
    return connection_options(secret(command))


def log_options(command: _Command) -> _Command:
    """Add ``--log-file`` and ``--log-file-size``."""
    file = click.option(
        "--log-file",
        type=click.Path(dir_okay=False),
        callback=file_to_write,
        metavar="PATH",
        help="Once it listens, append all that it prints to a file, and keep four earlier ones: "
        "PATH.1 to PATH.4.",
    )
    size = click.option(
        "--log-file-size",
        default=_SIZE,
        show_default=True,
        metavar="BYTES",
        callback=_size,
        help="How long each of them becomes, about.",
    )
    return file(size(command))


# Options of several commands that run until they are told to end.
supervised_option = click.option("--supervised", is_flag=True, help="End when standard input does.")

journal_option = click.option(
    "--shuffle-journal",
    metavar="PATH",
    help="The file with records of shuffles that have ended, for `treadle shuffle history`; none for "
    "none. By default treadle.shuffle.journal of Dask's configuration, or the user's own.",
)

http_option = click.option(
    "--http",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the dashboard, the state and the metrics are shown; none for nowhere.",
)

http_token_option = click.option(
    "--http-token-file",
    type=click.Path(dir_okay=False, exists=True),
    metavar="PATH",
    help="The token that shows state and metrics, in a file of mode 0600; by default a random one.",
)


def _size(_context: click.Context, _option: click.Parameter, text: str) -> int:
    if text == _SIZE:
        # To import Dask takes a command that only asks something longer than the answer.
        return 10_000_000
    from dask.utils import parse_bytes

    try:
        size = int(parse_bytes(text))
    except ValueError:
        size = 0
    if size < 1:
        raise click.BadParameter(f"{text!r}: give bytes, such as 10MB or 1GiB")
    return size


@dataclass(frozen=True)
class LogFile:
    """Where this process prints to once it listens: to standard output and error without a path."""

    path: str | None
    size: int

    def listening(self, address: str) -> None:
        """Say where this process listens, where it was started, and print to the file from now on."""
        listening(address)
        if self.path is None:
            return
        from treadle import _core

        _core.log_to_file(self.path, self.size)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # What tasks print is to be seen when it is printed.
                stream.reconfigure(line_buffering=True)


@dataclass(frozen=True)
class Credentials:
    """What lets this process's connections in, and keeps others out."""

    tls: str | None
    insecure: bool
    # The cluster's own; without it, that of the user, or with TLS none.
    secret_file: Path | None

    @classmethod
    def of_options(cls, tls: str | None, insecure: bool, secret_file: str | None) -> Credentials:
        """Take what the options say."""
        tls = None if tls is None else os.path.abspath(tls)
        if secret_file is None:
            keep_user_file()
            return cls(tls, insecure, None)
        path = Path(os.path.abspath(secret_file))
        # Whatever else this process or its children connect to, they never prove the user's.
        os.environ["TREADLE_SECRET_FILE"] = str(path)
        return cls(tls, insecure, path)

    @property
    def certificates(self) -> Mapping[str, str] | None:
        """Paths of the CA, the certificate and its key."""
        if self.tls is None:
            return None
        from treadle.common._certificates import of_prefix

        return of_prefix(self.tls)

    def address(self, address: str) -> str:
        """Return an address with its scheme; the URL of a registry as it is.

        Raises
        ------
        click.UsageError
            It has TLS, and there are no certificates; or it has no port.
        """
        if address.startswith("static:"):
            return address
        if address.startswith(("tcp://", "tls://")):
            # Not before it is needed: it imports distributed, which shuffle servers run without.
            from treadle.common._addresses import complete

            address = complete(address, self.certificates)
        if "://" in address:
            if address.startswith("treadle+tls://") and self.tls is None:
                raise click.UsageError(
                    f"{address} needs certificates: --tls PREFIX, made with `treadle certs`"
                )
            return checked_address(address)
        return checked_address(f"{'treadle+tls' if self.tls else 'treadle'}://{address}")

    def of_connections(self) -> dict[str, Any]:
        """Return the keyword arguments of connections that say this."""
        return {
            "secret": self.secret_file,
            "certificates": self.certificates,
            "insecure": self.insecure,
        }


def scheduler_of(
    address: str | None,
    scheduler_file: str | None,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> tuple[str, Credentials, str | None]:
    """Return the scheduler's address, what lets in there, and its cluster if that is known.

    Raises
    ------
    TimeoutError
        There is no scheduler file yet.
    OSError, ValueError
        There is none that can be trusted.
    """
    cluster = None
    if scheduler_file is not None:
        try:
            found = _scheduler_file.read(scheduler_file)
        except FileNotFoundError:
            raise TimeoutError(f"{scheduler_file} is not there") from None
        except _scheduler_file.UnfinishedError as error:
            raise TimeoutError(str(error)) from None
        address = found.address
        secret_file = secret_file or found.secret_file
        tls = tls or found.tls
        cluster = found.cluster
    assert address is not None
    credentials = Credentials.of_options(tls, insecure, secret_file)
    return credentials.address(address), credentials, cluster


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
        # A child takes a signal as other processes do, also one that comes before it could say so:
        # `Process.terminate` of a pool sends it at once, and waits.
        self._masked = threading.local()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._go_on, after_in_child=self._let_go
        )

    def _hold(self) -> None:
        self._masked.before = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT}
        )

    def _go_on(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masked.before)

    def _let_go(self) -> None:
        for number, default in (
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            if signal.getsignal(number) == self._note:
                signal.signal(number, default)
        self._go_on()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupt():
            return
        self.now = self.asked or number == signal.SIGINT
        self.asked = True


def say_pages(link: str | None, log: LogFile) -> None:
    """Say where the pages of a server or a master of the shuffle service are; their token on a terminal alone."""
    if link and log.path is None:
        link = link if sys.stdout.isatty() else link.partition("?")[0]
        announce(f"state and metrics at {link}")


def pages_of(http: str, names: tuple[str, ...], token_file: str | None) -> dict[str, Any]:
    """Return where the pages are, and for whom."""
    from treadle import _core

    if http == "none":
        return {}
    try:
        address, name = resolved(http)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or none", param_hint="--http") from None
    if name is not None:
        # Who names it so looks for it there.
        names = (*names, name)
    token = None if token_file is None else _core.read_secret(token_file).decode("ascii", "replace")
    return {"http": address, "http_token": token, "http_names": list(names)}
