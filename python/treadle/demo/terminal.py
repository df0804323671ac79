"""The demo in a terminal: progress bars and tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import pandas as pd
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

from treadle import Trace
from treadle.demo.cluster import Progress as Look
from treadle.demo.cluster import Show
from treadle.demo.run import Watch
from treadle.demo.views import View

_REFRESH = 0.05  # seconds between two updates of a bar


class TaskBar:
    """Moves a bar while a recorded run goes on: the counts are the engine's own."""

    def __init__(self, progress: Progress, bar: TaskID, trace: Trace) -> None:
        self._progress = progress
        self._bar = bar
        self._trace = trace
        self._before = (trace.planned, trace.tasks)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress bar", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._show()

    def _watch(self) -> None:
        while not self._over.wait(_REFRESH):
            self._show()

    def _show(self) -> None:
        planned = self._trace.planned - self._before[0]
        done = self._trace.tasks - self._before[1]
        self._progress.update(self._bar, total=planned or None, completed=done)


@contextmanager
def progress_bars(console: Console, *, shown: bool) -> Iterator[Watch]:
    """Yield what shows a bar for each phase of a run, if they are to be ``shown``."""
    if not shown:
        yield lambda _title, _trace: nullcontext()
        return
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield lambda title, trace: TaskBar(progress, progress.add_task(title, total=None), trace)


@contextmanager
def future_bars(console: Console, *, shown: bool) -> Iterator[Show]:
    """Yield what shows how far futures are: bars in a terminal, lines elsewhere."""
    if not shown:
        yield lambda _title, looks: _exhaust(looks)
        return
    if not console.is_terminal:
        yield lambda title, looks: _show_lines(console, title, looks)
        return
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks, futures: {task.fields[futures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:

        def show(title: str, looks: Iterator[Look]) -> None:
            bar = progress.add_task(title, total=None, futures="")
            for look in looks:
                futures = f"{look.futures} of {look.all_futures}"
                progress.update(bar, total=look.all_tasks, completed=look.tasks, futures=futures)

        yield show


def _exhaust(looks: Iterator[Look]) -> None:
    for _ in looks:
        pass


def _show_lines(console: Console, title: str, looks: Iterator[Look]) -> None:
    """Print a line for each tenth of the tasks, and for each future that is done."""
    began = time.monotonic()
    before = None
    for look in looks:
        now = (10 * look.tasks // max(look.all_tasks, 1), look.futures)
        if now != before:
            before = now
            console.print(
                f"{title}: {look.tasks} of {look.all_tasks} tasks and {look.futures} of"
                f" {look.all_futures} futures are done, {time.monotonic() - began:.1f} s",
                soft_wrap=True,
            )


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


def show_summary(console: Console, rows: Mapping[str, str], title: str = "The run") -> None:
    """Print a run in figures."""
    console.print(f"\n[bold]{title}[/bold]")
    table = _table(show_header=False)
    for label, text in rows.items():
        table.add_row(label, text)
    console.print(table)


def _table(*, show_header: bool = True) -> Table:
    return Table(
        show_header=show_header, header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
