"""The analysis, written as any Dask user would write it: nothing in here knows about Treadle.

Each result is a flat table whose first column is its key. Delays are in minutes; ``late`` is the
share of the flights that arrived 15 minutes late or more.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd

from treadle.demo.data import FLIGHT_COLUMNS, Tables

YEAR = 2013
LATE = 15
WORST = 10
#: Scheduled hours with flights all year round (one single flight left at 1 a.m.).
HOURS = range(5, 24)
#: A correlation from fewer days than this is shown as missing.
MIN_DAYS = 30

#: Class edges and labels by column of the weather table: inches an hour, miles an hour, miles.
WEATHER_CLASSES = {
    "rain": ("precip", [-inf, 0, 0.05, 0.2, inf], ["none", "light", "moderate", "heavy"]),
    "wind": ("wind_speed", [-inf, 8, 13, 20, inf], ["light", "gentle", "fresh", "strong"]),
    "visibility": (
        "visib",
        [-inf, 1, 3, 9.9, inf],
        ["up to 1", "1 to 3", "3 to 10", "10"],
    ),
}

_COUNTS = {"flights": ("date", "count"), "cancelled": ("cancelled", "sum")}
_MEANS = {
    "dep_delay": ("dep_delay", "mean"),
    "arr_delay": ("arr_delay", "mean"),
    "late": ("late", "mean"),
}
_SPREAD = {"median": ("arr_delay", "median"), "std": ("arr_delay", "std")}


def prepare(flights: pd.DataFrame) -> pd.DataFrame:
    """One block of the file as the analysis needs it."""
    arrived = flights["arr_delay"].notna()
    return flights.assign(
        date=pd.to_datetime(flights[["year", "month", "day"]]),
        late=(flights["arr_delay"] >= LATE).astype(float).where(arrived),
        cancelled=flights["dep_time"].isna(),
    ).drop(columns=["year", "day", "dep_time"])


def classify(weather: pd.DataFrame) -> pd.DataFrame:
    """The weather by airport and hour, each measure as the label of its class."""
    classes = {
        name: pd.cut(weather[column], edges, labels=labels).astype(object)
        for name, (column, edges, labels) in WEATHER_CLASSES.items()
    }
    return weather[["origin", "time_hour"]].assign(**classes)


def read_flights(csv: Path, partitions: int) -> dd.DataFrame:
    """The flights, in that many partitions (fewer if the file is tiny)."""
    blocksize = max(csv.stat().st_size // partitions, 4096)
    blocks = dd.read_csv(
        csv, blocksize=blocksize, usecols=list(FLIGHT_COLUMNS), dtype=FLIGHT_COLUMNS
    )
    flights: dd.DataFrame = blocks.map_partitions(prepare, meta=prepare(blocks._meta))
    return flights


def dataframe_results(flights: dd.DataFrame, tables: Tables) -> dict[str, dd.DataFrame]:
    """The tables of the report, not computed yet."""
    airlines = dd.from_pandas(tables.airlines, npartitions=1)
    planes = dd.from_pandas(tables.planes, npartitions=1)
    weather = dd.from_pandas(tables.weather, npartitions=4)
    weather = weather.map_partitions(classify, meta=classify(weather._meta))

    carriers = flights.groupby("carrier").agg(**_COUNTS, **_MEANS, **_SPREAD).reset_index()
    months = flights.groupby("month").agg(**_COUNTS, **_MEANS)
    days = flights.groupby("date").agg(**_COUNTS, **_MEANS).reset_index()

    flown = flights.merge(planes, on="tailnum")
    flown = flown.assign(age=(YEAR - flown["built"]) // 5 * 5)

    outside = flights.merge(weather, on=["origin", "time_hour"])
    by_weather = {name: outside.groupby(name).agg(**_COUNTS, **_MEANS) for name in WEATHER_CLASSES}

    return {
        "carriers": carriers.merge(airlines, on="carrier"),
        "months": months.reset_index(),
        "worst_days": days.nlargest(WORST, ["dep_delay", "date"]),
        "daily": daily_delay(flights).reset_index(),
        "makers": by_plane(flown, "manufacturer"),
        "ages": by_plane(flown, "age"),
        **{name: frame.reset_index() for name, frame in by_weather.items()},
    }


def by_plane(flown: dd.DataFrame, key: str) -> dd.DataFrame:
    """The statistics of flights whose plane is known, and the number of planes in each group."""
    # One partition of groups on either side: Dask 2026.8 cannot merge two shuffled aggregations.
    groups = flown.groupby(key)
    planes = groups["tailnum"].nunique(split_out=1).rename("planes").reset_index()
    delays = groups.agg(**_COUNTS, **_MEANS, split_out=1).reset_index()
    merged: dd.DataFrame = planes.merge(delays, on=key)
    return merged


def daily_delay(flights: dd.DataFrame) -> dd.DataFrame:
    """The mean departure delay of each day, and its rolling mean over seven days."""
    months = pd.date_range(f"{YEAR}-01-01", f"{YEAR}-12-01", freq="MS")
    divisions = [*months, pd.Timestamp(f"{YEAR}-12-31")]
    by_date = flights[["date", "dep_delay"]].set_index("date", divisions=divisions)
    daily: dd.DataFrame = by_date.resample("D").mean()
    daily["week"] = daily["dep_delay"].rolling("7D").mean()
    return daily


def hour_correlation(flights: dd.DataFrame) -> da.Array:
    """How the delays of two hours of the same day go together, for each pair of ``HOURS``.

    Pearson's correlation over the days on which both hours have a delay, from a day x hour array of
    mean departure delays with NaN where nothing left. Shape ``(len(HOURS), len(HOURS))``.
    """
    shape = (2, 365, 24)
    cells = flights.map_partitions(_delay_cells, shape, meta=np.empty((0, *shape)))
    sums, counts = cells.sum(axis=0)
    delay = da.where(counts > 0, sums / da.maximum(counts, 1), np.nan)
    delay = delay[:, HOURS.start : HOURS.stop].rechunk((31, -1))
    delay = delay - da.nanmean(delay)  # around zero, the differences below lose fewer digits

    known = (~da.isnan(delay)).astype(float)
    value = da.nan_to_num(delay)
    days = known.T @ known
    total = value.T @ known  # sum of the row's hour over the days that the column's hour has too
    square = (value**2).T @ known
    covariance = days * (value.T @ value) - total * total.T
    variance = days * square - total**2
    enough = (days >= MIN_DAYS) & (variance > 0) & (variance.T > 0)
    scale = da.sqrt(da.where(enough, variance * variance.T, 1))
    correlation: da.Array = da.where(enough, covariance / scale, np.nan)
    return correlation


def _delay_cells(flights: pd.DataFrame, shape: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    """Sum and number of a partition's departure delays by day and hour: shape ``(1, *shape)``."""
    left = flights[flights["dep_delay"].notna()]
    cell = (left["date"].dt.day_of_year - 1) * 24 + left["hour"]
    size = shape[1] * shape[2]
    sums = np.bincount(cell, weights=left["dep_delay"], minlength=size)
    counts = np.bincount(cell, minlength=size).astype(float)
    return np.stack([sums, counts]).reshape(1, *shape)
