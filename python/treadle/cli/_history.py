"""The command ``treadle history``: the page of a cluster that is no more."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from treadle.cli._basics import announce, clear_errors
from treadle.cli._long_running import Ending, http_option, http_token_option, pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["history", "lacks"]


def lacks(shown: Any) -> Iterator[str]:
    """Yield what of a history could not be read."""
    read, unreadable = shown.counts
    if unreadable:
        yield f"{unreadable} of {read + unreadable} events cannot be read"
    if shown.unread:
        yield f"{shown.unread} bytes are damaged or cut off, and left out"
    if shown.end is None:
        yield "it has no end: its scheduler was killed, or still writes it"
    elif shown.end == "full":
        yield "it ended before its scheduler: it had as many bytes as it may"
    elif shown.end == "failed":
        yield "it ended before its scheduler: it could not be written"


@click.command()
@http_option
@http_token_option
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the page to a file (HTML) that needs nothing else, at most 2 MB, instead of serving it.",
)
@click.argument("path", type=click.Path(exists=True, dir_okay=False))
def history(path: str, http: str, http_token_file: str | None, report: str | None) -> None:
    """Show the page of the history at PATH until SIGTERM or Ctrl-C.

    It is what a scheduler wrote with --history, or a cluster with history=PATH, however that ended.
    """
    with clear_errors():
        from treadle import _core

        if report is not None:
            _write(path, report)
            return
        pages = pages_of(http, (), http_token_file)
        if not pages:
            raise click.UsageError("--http none: nothing would be shown")
        shown = _core.History(path, **pages)
        try:
            # A file keeps no token, as with `treadle scheduler`.
            link = shown.http if sys.stdout.isatty() else shown.http.partition("?")[0]
            announce(f"history at {link}")
            for lack in lacks(shown):
                announce(lack)
            ending = Ending()
            pause = threading.Event()
            while not ending.asked:
                pause.wait(0.1)
        finally:
            shown.close()


def _write(path: str, report: str) -> None:
    """Write the page of a history to a file."""
    from treadle import _core
    from treadle.sight._pages import Pages
    from treadle.sight._report import made_of

    shown = _core.History(path)
    try:
        for lack in lacks(shown):
            click.echo(f"{path}: {lack}", err=True)
        page = made_of(Pages(shown.http))
    finally:
        shown.close()
    # What it says is for whoever may read the history.
    with open(report, "w", encoding="utf-8", opener=_private) as file:
        file.write(page)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, mode=0o600)
