"""Showing how far futures are: a bar in a terminal, a table in a notebook."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import format_bytes, format_time
from distributed.utils import is_kernel

from treadle._compat.distributed import parse_timedelta
from treadle.client import _distributed
from treadle.client._distributed import futures_of
from treadle.client._state import State
from treadle.common._ask import ask_now
from treadle.common._groups import prefix_of

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["progress"]

# Above so many futures only they are counted, and not the tasks that they depend on.
_MOST = 1000
# Seconds that the scheduler has to answer, and then until it is asked again.
_ANSWER = 1.0
_PAUSE = 2.0
# To look at a million tasks takes the scheduler most of a second. After an answer that took so many seconds
# at least, it is asked again after so many times that.
_SLOW = 0.05
_TIMES = 10.0
# Functions that have a row of their own.
_ROWS = 50
_WIDTH = 40
_DONE = ("memory", "released", "failed", "forgotten")
# The states of a future whose value is still to come.
_WAITING = ("pending", "lost")
# The function of the tasks that wait for the rows of a shuffle.
_BARRIER = "p2p_barrier"
# The first characters of a shuffle's name that are shown.
_NAME = 8


class Row(NamedTuple):
    """How far the tasks of one function are."""

    name: str
    done: int
    total: int
    failed: int


class Moved(NamedTuple):
    """How many bytes of the rows of a shuffle are where they are read.

    The expected bytes are an estimate until all inputs have been transferred.
    """

    name: str
    bytes: int
    expected: int

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} of {format_bytes(self.expected)}"


class Look(NamedTuple):
    """What one look at futures has seen."""

    #: One for each function, in the order in which they were first seen.
    rows: list[Row]
    #: The shuffles that were seen, the first one first.
    moved: list[Moved]
    #: The futures that wait for a value. Without any, the look shows the end.
    waiting: int


class Counts:
    """How far futures are, looked at now and then.

    Up to some number of futures, the scheduler is asked for the tasks that they are computed from,
    too. What it has forgotten by the time of a look was done.
    """

    def __init__(self, client: Client, states: list[State]) -> None:
        self._client = client
        self._states = states
        self._totals: dict[str, int] = {}
        self._ask = len(states) <= _MOST
        self._keys: list[Hashable] = [state.key for state in states]
        # What the scheduler said last, and when to ask it again.
        self._found: dict[str, dict[str, int]] = {}
        self._next = 0.0
        self._shuffles: dict[str, Moved] = {}
        for state in states:
            name = prefix_of(state.key)
            self._totals[name] = self._totals.get(name, 0) + 1
        self.began = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to come: a value that is lost is made again."""
        return not any(state.status in _WAITING for state in self._states)

    def look(self) -> Look:
        """Return how far the futures are: all from one reading of their states."""
        waiting: dict[str, int] = {}
        failed: dict[str, int] = {}
        for state in self._states:
            counted = waiting if state.status in _WAITING else failed
            if counted is waiting or state.status == "error":
                name = prefix_of(state.key)
                counted[name] = counted.get(name, 0) + 1
        futures = sum(waiting.values())
        if not futures:
            self._see([])
        elif self._ask:
            self._ask_scheduler(waiting)
        rows = [
            Row(name, max(0, total - waiting.get(name, 0)), total, failed.get(name, 0))
            for name, total in self._totals.items()
        ]
        return Look(rows, list(self._shuffles.values()), futures)

    def _see(self, shuffles: Iterable[dict[str, Any]]) -> None:
        """Note the shuffles that run. Those that were seen and are not among them have ended."""
        for name, one in self._shuffles.items():
            self._shuffles[name] = one._replace(bytes=one.expected)
        for running in shuffles:
            name = f"shuffle {running['name'][:_NAME]}"
            self._shuffles[name] = Moved(name, running["bytes"], running["expected_bytes"])

    def _ask_scheduler(self, waiting: dict[str, int]) -> None:
        connection = self._client._connection
        if connection is not None and time.monotonic() >= self._next:
            keys = {"keys": self._keys}
            asked = time.monotonic()
            try:
                found = ask_now(connection, "progress", keys, _ANSWER)
                barrier = _BARRIER in found
                shuffles = ask_now(connection, "shuffles", keys, _ANSWER) if barrier else ()
            except Exception:
                # It is busy: what it said last is shown meanwhile.
                self._next = time.monotonic() + _PAUSE
            else:
                answered = time.monotonic()
                if answered - asked >= _SLOW:
                    self._next = answered + _TIMES * (answered - asked)
                self._found = found
                self._see(shuffles)
        for name, states in self._found.items():
            total = sum(states.values())
            self._totals[name] = max(self._totals.get(name, 0), total)
            left = sum(count for state, count in states.items() if state not in _DONE)
            waiting[name] = max(left, waiting.get(name, 0)) if left else waiting.get(name, 0)


def _shortened(rows: list[Row]) -> list[Row]:
    """Return the first rows, and one for all others together."""
    rest = rows[_ROWS:]
    if not rest:
        return rows
    done, total, failed = (sum(column) for column in zip(*(row[1:] for row in rest), strict=True))
    return [*rows[:_ROWS], Row(f"{len(rest)} more", done, total, failed)]


def progress(
    *futures: Any, notebook: bool | None = None, interval: Any = "100ms", file: Any = None
) -> Any:
    """Show how far futures or collections are, function by function.

    Of a P2P shuffle that runs, it shows the bytes that were moved, and how many are expected.

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
            look = counts.look()
            draw(look.rows, look.moved, time.monotonic() - counts.began)
            if not look.waiting:
                break
            with suppress(_distributed.TimeoutError):
                client._block(lambda: counts.finished, seconds)
    return None


@contextmanager
def _drawing(file: Any) -> Iterator[Any]:
    """Yield what draws rows: with rich where it is installed and the file is a terminal."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
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
    # A key may look like markup, or like an emoji.
    name = TextColumn("{task.description}", markup=False)
    failed = TextColumn("{task.fields[failed]}", style="red", markup=False)
    count = TextColumn("{task.fields[count]}", markup=False)
    columns = (name, failed, BarColumn(), count, Elapsed())
    with Progress(*columns, console=console) as bars:
        tasks: dict[int | str, Any] = {}

        def show(
            place: int | str, name: str, done: int, total: int, count: str, failed: str = ""
        ) -> None:
            if place not in tasks:
                tasks[place] = bars.add_task(name, total=total, count=count, failed=failed)
            bars.update(
                tasks[place],
                completed=done,
                total=total,
                description=name,
                count=count,
                failed=failed,
            )

        def draw_bars(rows: list[Row], moved: list[Moved], _elapsed: float) -> None:
            for place, row in enumerate(_shortened(rows)):
                failed = f"{row.failed} failed" if row.failed else ""
                show(place, row.name, row.done, row.total, f"{row.done}/{row.total}", failed)
            for one in moved:
                show(one.name, one.name, one.bytes, one.expected, str(one))

        yield draw_bars


@contextmanager
def _plain(file: Any) -> Iterator[Any]:
    written = 0

    def draw(rows: list[Row], moved: list[Moved], elapsed: float) -> None:
        nonlocal written
        done, total = sum(row.done for row in rows), sum(row.total for row in rows)
        share = done / total if total else 1.0
        bar = "#" * int(_WIDTH * share)
        line = f"[{bar:<{_WIDTH}}] | {int(100 * share)}% Completed | {format_time(elapsed)}"
        line += "".join(f" | {one.name}: {one}" for one in moved if one.bytes < one.expected)
        file.write(f"\r{line:<{written}}")
        written = len(line)
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
            waiting = True
            while waiting:
                time.sleep(self._interval)
                look = self._counts.look()
                waiting = bool(look.waiting)
                handle.update(HTML(self._html(look)))

        threading.Thread(target=keep_drawing, name="treadle-progress", daemon=True).start()

    def _repr_html_(self) -> str:
        return self._html(self._counts.look())

    def _html(self, look: Look) -> str:
        rows = []
        for row in _shortened(look.rows):
            failed = f" <span style='color:#c00'>{row.failed} failed</span>" if row.failed else ""
            rows.append(
                f"<tr><td>{html.escape(row.name)}</td>"
                f"<td><progress max='{row.total}' value='{row.done}'></progress></td>"
                f"<td>{row.done} / {row.total}{failed}</td></tr>"
            )
        for one in look.moved:
            rows.append(
                f"<tr><td>{html.escape(one.name)}</td>"
                f"<td><progress max='{one.expected}' value='{one.bytes}'></progress></td>"
                f"<td>{one}</td></tr>"
            )
        elapsed = format_time(time.monotonic() - self._counts.began)
        return f"<table>{''.join(rows)}</table><small>{elapsed}</small>"
