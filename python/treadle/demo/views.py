"""What is shown of each result: the same for the terminal and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from dask.utils import key_split

from treadle.demo.analysis import WEATHER_CLASSES, WORST
from treadle.demo.cluster import WORKERS, ClusterOutcome
from treadle.demo.run import Outcome

Format = Callable[[Any], str]


def _text(value: Any) -> str:
    return str(value)


def _count(value: Any) -> str:
    return f"{value:,.0f}"


def _minutes(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.1f}".replace("-", "−")


def _percent(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.1%}"


def _date(value: Any) -> str:
    return f"{value:%a %d %b}"


def _carrier(value: Any) -> str:
    for ending in (" Inc.", " Co.", " Corporation"):
        value = value.removesuffix(ending)
    return str(value)


def _month(value: Any) -> str:
    return f"{pd.Timestamp(2013, value, 1):%b}"


def _age(value: Any) -> str:
    return f"{value:.0f}–{value + 4:.0f} years"


def _hour(value: Any) -> str:
    return f"{value:02d}:00"


def _correlation(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.2f}".replace("-", "−")


@dataclass(frozen=True)
class View:
    """One result as a table: its columns as (heading, format), and which rows in which order."""

    title: str
    note: str
    columns: Mapping[Any, tuple[str, Format]]
    select: Callable[[pd.DataFrame], pd.DataFrame]

    def headings(self) -> list[str]:
        return [heading for heading, _ in self.columns.values()]

    def rows(self, result: pd.DataFrame) -> Iterator[list[str]]:
        for row in self.select(result)[list(self.columns)].itertuples(index=False):
            formats = (show for _, show in self.columns.values())
            yield [show(value) for show, value in zip(formats, row, strict=True)]


_COUNTS = {"flights": ("flights", _count), "cancelled": ("cancelled", _count)}
_DELAYS = {
    "dep_delay": ("depart", _minutes),
    "arr_delay": ("arrive", _minutes),
    "late": ("late", _percent),
}
_PLANES = {"planes": ("planes", _count), **_COUNTS, **_DELAYS}

#: The hours of the terminal's correlation table; the page shows all of them as a picture.
_SOME_HOURS = [6, 9, 12, 15, 18, 21]


def _by(
    column: str, *, ascending: bool = True, top: int | None = None
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.sort_values(column, ascending=ascending).head(top or len(frame))


def _labelled(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Rows in the order in which the classes were declared."""
    labels = WEATHER_CLASSES[name][2]
    return lambda frame: frame.sort_values(name, key=lambda column: column.map(labels.index))


def _weather(name: str, title: str, note: str) -> View:
    return View(title, note, {name: (name, _text), **_COUNTS, **_DELAYS}, _labelled(name))


VIEWS = {
    "carriers": View(
        "Delay by carrier",
        "minutes; late: arrived 15 minutes late or more; least punctual first",
        {
            "name": ("carrier", _carrier),
            **_COUNTS,
            **_DELAYS,
            "median": ("median", _minutes),
            "std": ("std", _minutes),
        },
        _by("arr_delay", ascending=False),
    ),
    "months": View(
        "Delay by month",
        "mean minutes",
        {"month": ("month", _month), **_COUNTS, **_DELAYS},
        _by("month"),
    ),
    "worst_days": View(
        f"The {WORST} worst days",
        "by mean departure delay, minutes",
        {"date": ("day", _date), **_COUNTS, **_DELAYS},
        _by("dep_delay", ascending=False),
    ),
    "daily": View(
        "Rolling mean of the daily delay",
        "departure delay in minutes; the table has the last day of each month",
        {
            "date": ("day", _date),
            "dep_delay": ("that day", _minutes),
            "week": ("7-day mean", _minutes),
        },
        lambda frame: frame[frame["date"].dt.is_month_end].sort_values("date"),
    ),
    "makers": View(
        "Delay by aircraft manufacturer",
        "flights joined with planes; the ten largest; mean minutes",
        {"manufacturer": ("manufacturer", _text), **_PLANES},
        _by("flights", ascending=False, top=10),
    ),
    "ages": View(
        "Delay by age of the aircraft",
        "flights joined with planes; mean minutes",
        {"age": ("age", _age), **_PLANES},
        _by("age"),
    ),
    "rain": _weather(
        "rain",
        "Delay and rain",
        "flights joined with the weather of their hour and airport; "
        "light: up to 0.05 inches an hour, moderate: up to 0.2",
    ),
    "wind": _weather(
        "wind",
        "Delay and wind",
        "flights joined with the weather of their hour and airport; "
        "light: up to 8 miles an hour, gentle: up to 13, fresh: up to 20",
    ),
    "visibility": _weather(
        "visibility",
        "Delay and visibility",
        "flights joined with the weather of their hour and airport; miles",
    ),
    "hours": View(
        "Correlation of the delay between hours of the day",
        "Pearson, over the days of the year; a delay in the afternoon lasts into the evening",
        {"hour": ("hour", _hour), **{hour: (_hour(hour), _correlation) for hour in _SOME_HOURS}},
        lambda frame: frame[frame["hour"].isin(_SOME_HOURS)],
    ),
}


def tiles(outcome: Outcome, pandas_seconds: float) -> dict[str, str]:
    """The main figures, as label and value."""
    return {
        "tasks": f"{outcome.tasks:,}",
        "engine time per task": f"{outcome.engine_us_per_task:.2f} µs",
        "Dask on Treadle, wall": f"{outcome.wall:.2f} s",
        "pandas alone, wall": f"{pandas_seconds:.2f} s",
        "results equal pandas": f"{len(VIEWS)} of {len(VIEWS)}",
    }


def summary(outcome: Outcome, pandas_seconds: float) -> dict[str, str]:
    """What ran and what it cost, as label and text."""
    share = outcome.engine_seconds / outcome.wall
    phases = ", ".join(f"{title} {seconds:.2f} s" for title, seconds in outcome.phases.items())
    return {
        "tasks": f"{outcome.tasks:,} tasks, {outcome.task_seconds:.2f} s in their own code",
        "engine": f"{outcome.engine_us_per_task:.2f} µs per task, "
        f"{outcome.engine_seconds * 1e3:.1f} ms in all, {share:.2%} of the wall time (trace on)",
        "Dask on Treadle": f"{outcome.wall:.2f} s wall ({phases})",
        "no task running": f"{outcome.wall - outcome.busy:.2f} s of that: mostly Dask, which builds "
        "and optimises its graphs",
        "pandas alone": f"{pandas_seconds:.2f} s wall, reading included",
    }


def cluster_summary(outcome: ClusterOutcome, wall: float) -> dict[str, str]:
    """What ran on worker processes and what the death of one cost, as label and text.

    ``wall``: seconds of the run without processes.
    """
    loss = outcome.loss
    phases = ", ".join(f"{title} {seconds:.2f} s" for title, seconds in outcome.phases.items())
    return {
        "worker processes": f"{WORKERS} of one thread each; {outcome.tasks:,} runs of tasks, "
        f"{outcome.task_seconds:.2f} s in their own code",
        "lost": f"worker {loss.worker} (process {loss.process}), {loss.time / 1e6:.2f} s after the "
        f"start: {loss.cause}. Another process took its place",
        "interrupted": _tasks(loss.interrupted, "none: it ran nothing at that moment"),
        "run twice": _tasks(
            loss.repeated, "none that the trace has: what it had made was elsewhere, or not needed"
        ),
        "results": f"{len(VIEWS)} of {len(VIEWS)} equal pandas, all the same",
        "wall": f"{outcome.wall:.2f} s ({phases}); {wall:.2f} s on threads, without a loss",
        "clocks in the trace": f"exact to {outcome.clock_error:.0f} µs between processes",
    }


def _tasks(keys: list[str], none: str) -> str:
    """Count tasks by what they are."""
    if not keys:
        return none
    names = Counter(key_split(key) for key in keys)
    most = ", ".join(f"{count} × {name}" for name, count in names.most_common(4))
    plural = "task" if len(keys) == 1 else "tasks"
    rest = sum(names.values()) - sum(count for _, count in names.most_common(4))
    return f"{len(keys)} {plural}: {most}" + (f", {rest} others" if rest else "")
