"""What the commands share: options, errors, tables, processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treadle.cli._values import file_to_write
from treadle.common._certificates import checked
from treadle.common._command_process import ANNOUNCED

if TYPE_CHECKING:
    from treadle._core import Listener
    from treadle._core import TransferConnection as Connection

__all__ = [
    "Output",
    "announce",
    "clear_errors",
    "connection_options",
    "end_with_input",
    "json_option",
    "listening",
    "reason",
    "serve",
    "tell",
    "told",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])
# Seconds that a process has to end by itself when its input has ended.
_PATIENCE = 5.0


def connection_options(command: _Command) -> _Command:
    """Add ``--tls`` and ``--insecure``."""
    tls = click.option(
        "--tls",
        metavar="PREFIX",
        callback=_certificates,
        help="Certificates that `treadle certs` made, such as treadle-certs/node.",
    )
    insecure = click.option(
        "--insecure",
        is_flag=True,
        help="Allow other machines without TLS; both sides still need the same secret.",
    )
    return tls(insecure(command))


def _certificates(
    _context: click.Context, _option: click.Parameter, prefix: str | None
) -> str | None:
    """Return the prefix of certificates that are there.

    Raises
    ------
    click.ClickException
        A file is missing.
    """
    if prefix is not None:
        try:
            checked(prefix, f"--tls {prefix}")
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    return prefix


json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, allow_dash=True),
    callback=file_to_write,
    metavar="PATH",
    help="Write the result as JSON, too; with - to standard output, and the rest to standard error.",
)


def reason(error: BaseException) -> str:
    """Return what went wrong."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__


@contextmanager
def clear_errors(missing: str | None = None) -> Iterator[None]:
    """Turn what can go wrong with connections into a message and exit status 1.

    ``missing`` says what to do when nobody listens.
    """
    try:
        yield
    except ConnectionError as error:
        _drop_output_of_nobody()
        hint = f"; {missing}" if missing and "Connection refused" in reason(error) else ""
        raise click.ClickException(reason(error) + hint) from None
    except (OSError, ValueError, ImportError, MemoryError) as error:
        raise click.ClickException(reason(error)) from None


def _drop_output_of_nobody() -> None:
    """Drop what is in the buffer of standard output if nobody reads it: Python would fail at its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


class Output:
    """Text and tables for people, with rich where it is installed, and JSON for programs."""

    def __init__(self, json_path: str | None = None) -> None:
        self._json_path = json_path
        self._stream = sys.stderr if json_path == "-" else sys.stdout
        self._console: Any = None
        with suppress(ImportError):
            from rich.console import Console

            self._console = Console(file=self._stream, highlight=False, soft_wrap=True)

    def say(self, text: str = "") -> None:
        """Print lines."""
        click.echo(text, file=self._stream)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; the first column is text, the others are figures."""
        if self._console is None:
            self._plain_table(headings, rows)
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            show_header=any(headings),
            box=box.SIMPLE_HEAD,
            header_style="bold",
            padding=(0, 1, 0, 0),
        )
        for number, heading in enumerate(headings):
            table.add_column(Text(heading), justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        # Not narrower than its cells, whatever the terminal: a figure that is cut off is none.
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        needed = sum(widths) + 2 * len(widths) + 2
        if needed > self._console.width:
            table.width = needed
        self._console.print(table, crop=False)

    def _plain_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = [headings, *rows] if any(headings) else rows
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        self.say()
        for line in lines:
            first, *others = (
                cell.rjust(width) if number else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            self.say("  ".join([f" {first}", *others]).rstrip())
        self.say()

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[float, float], None]]:
        """Yield what draws how much of how much is done, on a terminal that can be drawn on."""
        if self._console is None or not self._console.is_terminal:
            yield lambda _done, _total: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(bar, completed=done, total=total)

    def result(self, value: dict[str, Any]) -> None:
        """Write the JSON, if it was asked for."""
        if self._json_path is None:
            return
        text = json.dumps(value, indent=2) + "\n"
        if self._json_path == "-":
            click.echo(text, nl=False)
        else:
            Path(self._json_path).write_text(text, encoding="utf-8")


def announce(line: str) -> None:
    """Print a line of a server, which goes on if nobody reads it any more."""
    try:
        click.echo(line)
        # There may be no standard output.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output_of_nobody()


def listening(address: str) -> None:
    """Say where this process listens; :class:`Child` waits for it."""
    announce(f"{ANNOUNCED}{address}")


def end_with_input() -> None:
    """Interrupt this process when its standard input ends, and kill it soon afterwards."""
    from treadle import _core

    # A process that was started in the background ignores interrupts, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _core.end_with_input(_PATIENCE)


def serve(listener: Listener, attend: Callable[[Connection], None]) -> None:
    """Call ``attend`` with each connection, in a thread each, until Ctrl-C."""
    with listener, suppress(KeyboardInterrupt):
        listening(listener.address)
        for connection in listener:
            threading.Thread(target=_attend, args=(attend, connection), daemon=True).start()


def _attend(attend: Callable[[Connection], None], connection: Connection) -> None:
    try:
        with connection:
            attend(connection)
    except EOFError:
        pass  # closed, by the other side or at this process's end
    except Exception as error:
        # The others are served all the same.
        text = reason(error)
        who = "" if connection.address in text else f"{connection.address}: "
        click.echo(f"{who}{text}", err=True)


def tell(connection: Connection, **values: Any) -> None:
    """Send values as JSON: nothing of a peer has to be unpickled here."""
    connection.send(json.dumps(values).encode())


def told(connection: Connection, timeout: float | None = None) -> dict[str, Any]:
    """Receive what :func:`tell` sent."""
    try:
        values = json.loads(connection.recv(timeout=timeout))
    except OSError:
        raise
    except Exception:
        # Whatever it is that another program sends.
        values = None
    if not isinstance(values, dict):
        raise ValueError(
            f"{connection.address} does not speak this command's language: run the same command, "
            "mode and version on both sides"
        )
    return values
