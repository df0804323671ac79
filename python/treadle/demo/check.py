"""The same results in plain pandas, and the comparison with Treadle's."""

from __future__ import annotations

import pandas as pd

from treadle.demo.analysis import HOURS, LATE, MIN_DAYS, WEATHER_CLASSES, WORST, YEAR, classify
from treadle.demo.data import FLIGHT_COLUMNS, Tables
from treadle.demo.errors import DemoError

#: Sums of floats in another order differ in their last digits; anything larger is a wrong result.
TOLERANCE = 1e-9


class MismatchError(DemoError):
    """A result of Dask on Treadle is not what pandas says."""


def references(tables: Tables) -> dict[str, pd.DataFrame]:
    """Every result of the analysis, by pandas alone."""
    flights = pd.read_csv(tables.flights_csv, usecols=list(FLIGHT_COLUMNS), dtype=FLIGHT_COLUMNS)
    flights["date"] = pd.to_datetime(flights[["year", "month", "day"]])
    flights["cancelled"] = flights["dep_time"].isna()
    flights["late"] = flights["arr_delay"].ge(LATE).astype(float)
    flights.loc[flights["arr_delay"].isna(), "late"] = float("nan")

    flown = flights.merge(tables.planes, on="tailnum")
    flown["age"] = (YEAR - flown["built"]) // 5 * 5
    outside = flights.merge(classify(tables.weather), on=["origin", "time_hour"])

    carriers = _summary(flights, "carrier").reset_index(drop=True)
    arrivals = flights.groupby("carrier")["arr_delay"]
    carriers["median"] = arrivals.median().to_numpy()
    carriers["std"] = arrivals.std().to_numpy()

    days = pd.date_range(f"{YEAR}-01-01", f"{YEAR}-12-31", name="date")
    daily = flights.groupby("date")["dep_delay"].mean().reindex(days).to_frame()
    daily["week"] = daily["dep_delay"].rolling(7, min_periods=1).mean()

    by_hour = flights.pivot_table(index="date", columns="hour", values="dep_delay", aggfunc="mean")
    correlation = by_hour.reindex(columns=HOURS).corr(min_periods=MIN_DAYS)

    return {
        "carriers": carriers.merge(tables.airlines, on="carrier"),
        "months": _summary(flights, "month"),
        "worst_days": _summary(flights, "date").sort_values(["dep_delay", "date"]).tail(WORST),
        "daily": daily.reset_index(),
        "makers": _summary(flown, "manufacturer", planes=True),
        "ages": _summary(flown, "age", planes=True),
        **{name: _summary(outside, name) for name in WEATHER_CLASSES},
        "hours": correlation.rename_axis(index="hour", columns=None).reset_index(),
    }


def compare(name: str, ours: pd.DataFrame, reference: pd.DataFrame) -> None:
    """Raise MismatchError, with what differs, unless the two tables are equal.

    Columns, types and values count; the order of rows and columns does not, and neither does which
    of pandas' string types a column has.
    """
    try:
        pd.testing.assert_frame_equal(
            _comparable(ours),
            _comparable(reference),
            check_like=True,
            rtol=TOLERANCE,
            atol=TOLERANCE,
        )
    except AssertionError as error:
        raise MismatchError(f"{name}: Dask on Treadle and pandas disagree\n{error}") from error


def _summary(flights: pd.DataFrame, by: str, planes: bool = False) -> pd.DataFrame:
    groups = flights.groupby(by)
    columns = {"planes": groups["tailnum"].nunique()} if planes else {}
    columns |= {"flights": groups.size(), "cancelled": groups["cancelled"].sum()}
    columns |= {name: groups[name].mean() for name in ("dep_delay", "arr_delay", "late")}
    return pd.DataFrame(columns).reset_index()


def _comparable(frame: pd.DataFrame) -> pd.DataFrame:
    text = [c for c in frame.columns if pd.api.types.is_string_dtype(frame[c].dtype)]
    dates = [c for c in frame.columns if pd.api.types.is_datetime64_dtype(frame[c].dtype)]
    types = dict.fromkeys(text, object) | dict.fromkeys(dates, "datetime64[ns]")
    return frame.astype(types).sort_values(frame.columns[0]).reset_index(drop=True)
