"""The demo in a terminal: progress bars and tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pandas as pd
from dask.callbacks import Callback
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from treadle.demo.run import Watch
from treadle.demo.views import View

_REFRESH = 0.05  # seconds between two updates of a bar


class TaskBar(Callback):
    """A Dask callback that moves a bar as the tasks finish."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar
        self._done = 0
        self._shown = 0.0

    def _start_state(self, _dsk: object, state: Mapping[str, Any]) -> None:
        total = sum(len(state[kind]) for kind in ("ready", "waiting", "running"))
        self._progress.update(self._bar, total=total)

    def _posttask(self, *_: object) -> None:
        self._done += 1
        if time.monotonic() - self._shown > _REFRESH:
            self._progress.update(self._bar, completed=self._done)
            self._shown = time.monotonic()

    def _finish(self, *_: object) -> None:
        self._progress.update(self._bar, completed=self._done, total=self._done)


@contextmanager
def progress_bars(console: Console, *, shown: bool) -> Iterator[Watch]:
    """Yield what shows a bar for each phase of a run; if not ``shown``, no callback runs at all."""
    if not shown:
        yield lambda _: nullcontext()
        return
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield lambda title: TaskBar(progress, progress.add_task(title, total=None))


def show_result(console: Console, view: View, result: pd.DataFrame) -> None:
    """Print the result as a table, below its title and the outcome of the check."""
    console.print(f"\n[bold]{view.title}[/bold]  [green]✓ equals pandas[/green]")
    table = _table()
    for number, heading in enumerate(view.headings()):
        table.add_column(heading, justify="right" if number else "left", no_wrap=bool(number))
    for row in view.rows(result):
        table.add_row(*row)
    console.print(table)
    console.print(f"[dim]{view.note}[/dim]")


def show_summary(console: Console, rows: Mapping[str, str]) -> None:
    """Print the run in figures."""
    console.print("\n[bold]The run[/bold]")
    table = _table(show_header=False)
    for label, text in rows.items():
        table.add_row(label, text)
    console.print(table)


def _table(*, show_header: bool = True) -> Table:
    return Table(
        show_header=show_header, header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
