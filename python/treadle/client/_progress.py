"""Showing how far futures are: a bar in a terminal, a table in a notebook."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import format_time, key_split
from distributed.utils import is_kernel

from treadle._ask import ask_now
from treadle._compat.distributed import parse_timedelta
from treadle.client._distributed import futures_of
from treadle.client._state import State

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["progress"]

# Above so many futures only they are counted, and not the tasks that they depend on.
_MOST = 1000
_WIDTH = 40
_DONE = ("memory", "released", "failed", "forgotten")


class Row(NamedTuple):
    """How far the tasks of one function are."""

    name: str
    done: int
    total: int
    failed: int


class Counts:
    """How far futures are, looked at now and then.

    Up to some number of futures, the scheduler is asked for the tasks that they are computed from,
    too. What it has forgotten by the time of a look was done.
    """

    def __init__(self, client: Client, states: list[State]) -> None:
        self._client = client
        self._pending = states
        self._totals: dict[str, int] = {}
        self._ask = len(states) <= _MOST
        self._keys: list[Hashable] = [state.key for state in states]
        self._failed: dict[str, int] = {}
        for state in states:
            name = key_split(state.key)
            self._totals[name] = self._totals.get(name, 0) + 1
        self.began = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to come."""
        return all(state.status not in ("pending", "lost") for state in self._pending)

    def look(self) -> list[Row]:
        """Return how far each function is, in the order in which they were first seen."""
        waiting: dict[str, int] = {}
        still = []
        for state in self._pending:
            if state.status in ("pending", "lost"):
                still.append(state)
                name = key_split(state.key)
                waiting[name] = waiting.get(name, 0) + 1
            elif state.status != "finished":
                name = key_split(state.key)
                self._failed[name] = self._failed.get(name, 0) + 1
        self._pending = still
        if self._ask and still:
            self._ask_scheduler(waiting)
        return [
            Row(name, max(0, total - waiting.get(name, 0)), total, self._failed.get(name, 0))
            for name, total in self._totals.items()
        ]

    def _ask_scheduler(self, waiting: dict[str, int]) -> None:
        connection = self._client._connection
        if connection is None:
            return
        try:
            found = ask_now(connection, "progress", {"keys": self._keys}, 1.0)
        except Exception:
            self._ask = False
            return
        for name, states in found.items():
            total = sum(states.values())
            self._totals[name] = max(self._totals.get(name, 0), total)
            left = sum(count for state, count in states.items() if state not in _DONE)
            waiting[name] = max(left, waiting.get(name, 0)) if left else waiting.get(name, 0)


def progress(
    *futures: Any, notebook: bool | None = None, interval: Any = "100ms", file: Any = None
) -> Any:
    """Show how far futures or collections are, function by function.

    In a terminal this returns when they are done; with Ctrl-C earlier, while they go on. In a
    notebook it returns at once, and what it returns draws itself and keeps drawing.

    Parameters
    ----------
    *futures
        Futures, collections that were persisted, or containers of them.
    notebook
        Whether this is a notebook; by default it finds out.
    interval
        Time between two looks.
    file
        Where to draw: ``sys.stdout`` by default.
    """
    found = list(futures_of(futures))
    seconds = parse_timedelta(interval, "s")
    if not found:
        return None
    client = found[0].client
    counts = Counts(client, list({future.key: future._state for future in found}.values()))
    if is_kernel() if notebook is None else notebook:
        return NotebookProgress(counts, seconds)
    if client.asynchronous:
        raise RuntimeError("progress() waits: in a coroutine, await the futures instead")
    with _drawing(file or sys.stdout) as draw:
        while True:
            rows = counts.look()
            draw(rows, time.monotonic() - counts.began)
            if counts.finished:
                break
            with suppress(TimeoutError):
                client._block(lambda: counts.finished, seconds)
    return None


@contextmanager
def _drawing(file: Any) -> Iterator[Any]:
    """Yield what draws rows: with rich where it is installed and the file is a terminal."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed
    except ImportError:
        with _plain(file) as draw:
            yield draw
        return
    console = Console(file=file)
    if not console.is_terminal:
        with _plain(file) as draw:
            yield draw
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def draw_bars(rows: list[Row], _elapsed: float) -> None:
            for row in rows:
                if row.name not in tasks:
                    tasks[row.name] = bars.add_task(row.name, total=row.total)
                text = f"{row.name} [red]{row.failed} failed" if row.failed else row.name
                bars.update(tasks[row.name], completed=row.done, total=row.total, description=text)

        yield draw_bars


@contextmanager
def _plain(file: Any) -> Iterator[Any]:
    def draw(rows: list[Row], elapsed: float) -> None:
        done, total = sum(row.done for row in rows), sum(row.total for row in rows)
        share = done / total if total else 1.0
        bar = "#" * int(_WIDTH * share)
        file.write(f"\r[{bar:<{_WIDTH}}] | {int(100 * share)}% Completed | {format_time(elapsed)}")
        file.flush()

    yield draw
    file.write("\n")
    file.flush()


class NotebookProgress:
    """Bars in a notebook, which move while futures do."""

    def __init__(self, counts: Counts, interval: float) -> None:
        self._counts = counts
        self._interval = interval

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        handle = display(HTML(self._repr_html_()), display_id=True)
        if handle is None or self._counts.finished:
            return

        def keep_drawing() -> None:
            while not self._counts.finished:
                time.sleep(self._interval)
                handle.update(HTML(self._repr_html_()))
            handle.update(HTML(self._repr_html_()))

        threading.Thread(target=keep_drawing, name="treadle-progress", daemon=True).start()

    def _repr_html_(self) -> str:
        rows = []
        for row in self._counts.look():
            failed = f" <span style='color:#c00'>{row.failed} failed</span>" if row.failed else ""
            rows.append(
                f"<tr><td>{html.escape(row.name)}</td>"
                f"<td><progress max='{row.total}' value='{row.done}'></progress></td>"
                f"<td>{row.done} / {row.total}{failed}</td></tr>"
            )
        elapsed = format_time(time.monotonic() - self._counts.began)
        return f"<table>{''.join(rows)}</table><small>{elapsed}</small>"
