"""The command ``treadle history``: the page of a cluster that is no more."""

from __future__ import annotations

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


@click.command()
@http_option
@http_token_option
@click.argument("path", type=click.Path(exists=True, dir_okay=False))
def history(path: str, http: str, http_token_file: str | None) -> None:
    """Show the page of the history at PATH until SIGTERM or Ctrl-C.

    It is what a scheduler wrote with --history, or a cluster with history=PATH, however that ended.
    """
    with clear_errors():
        from treadle import _core

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
