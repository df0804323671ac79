"""A year of flights, as the demo analyses it: `treadle bench compare examples/flights.py`.

It needs the extra `demo`. Nothing in it knows about Treadle's engine.
"""

import tempfile
from pathlib import Path

import dask

from treadle.demo.analysis import dataframe_results, hour_correlation, read_flights
from treadle.demo.data import open_tables

with tempfile.TemporaryDirectory() as folder:
    tables = open_tables(Path(folder))
    flights = read_flights(tables.flights_csv, partitions=16).persist()
    (results,) = dask.compute(dataframe_results(flights, tables))
    hours = hour_correlation(flights).compute()

for name in sorted(results):
    print(f"{name}: {len(results[name])} rows")
