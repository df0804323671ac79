"""Run TPC-DS on Spark's own shuffle and on the shuffle service, in turns: ``make bench-tpcds``.

All 99 queries with the default parameters of DuckDB's generator, each by one driver of each kind on the same files.
A query is run once to warm up both kinds, then ``--rounds`` times in turns; its time is the median. Results are compared as
multisets of rows: those of both kinds with twelve digits, and with DuckDB's, which rounds averages elsewhere, with six. A
query whose ``limit`` cuts equal rows is compared once more without it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
from duckdb_extensions import import_extension

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "spark"))

from application import Application
from service import Service

# Spark's own defaults, where the demo has others; the cores of this machine.
DEFAULTS = {
    "spark.sql.autoBroadcastJoinThreshold": "10MB",
    "spark.sql.files.maxPartitionBytes": "128MB",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64MB",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "256MB",
    "spark.sql.shuffle.partitions": "200",
    "spark.master": "local-cluster[2,1,2048]",
    "spark.executor.memory": "2g",
    "spark.driver.memory": "2g",
    "spark.eventLog.enabled": "false",
}
# Sums of doubles differ with the order of rows.
SPARK, DUCKDB = Context(prec=12), Context(prec=6)
LIMIT = re.compile(r"\blimit\s+\d+\s*;?\s*$", re.IGNORECASE)


def made(connection: duckdb.DuckDBPyConnection, data: Path, scale: float) -> None:
    """Write the tables, unless they are there."""
    if not (data / "made").exists():
        data.mkdir(parents=True, exist_ok=True)
        connection.sql(f"call dsdgen(sf={scale})")
        for (name,) in connection.sql("show tables").fetchall():
            connection.sql(f"copy {name} to '{data / name}.parquet'")
            connection.sql(f"drop table {name}")
        (data / "made").touch()
    for file in data.glob("*.parquet"):
        connection.sql(f"create view {file.stem} as from read_parquet('{file}')")


def plain(value: Any, digits: Context) -> str | None:
    """A value as it is compared, whatever its type."""
    if value is None:
        return None
    try:
        number = Decimal(str(value))
    except ArithmeticError:
        return str(value).rstrip()
    return format(digits.create_decimal(number).normalize() + 0, "f")


def is_equal(one: list[Any], other: list[Any], digits: Context) -> bool:
    first, second = (
        Counter(tuple(plain(value, digits) for value in row) for row in rows)
        for rows in (one, other)
    )
    return first == second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("queries", nargs="*", type=int, metavar="QUERY", help="default: all 99")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder of the tables, made where it is missing")
    options = parser.parse_args()
    python, jar = os.environ["TREADLE_SPARK_PYTHON"], os.environ["TREADLE_SPARK_JAR"]
    import_extension("tpcds")
    connection = duckdb.connect()
    connection.sql("load tpcds")
    texts = dict(
        connection.sql("select query_nr, query from tpcds_queries() order by query_nr").fetchall()
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-tpcds-")))
        data = (options.data or directory / "data").absolute()
        begun = time.time()
        made(connection, data, options.scale)
        print(f"TPC-DS at scale {options.scale:g}: {time.time() - begun:.0f} s for its tables")
        service = Service(stack, directory)
        applications = {}
        for kind, settings in (("stock", {}), ("treadle", service.settings())):
            application = Application(python, jar, directory / kind, data, {**DEFAULTS, **settings})
            stack.callback(application.kill)
            applications[kind] = application
        print(f"{'query':>5}{'rows':>7}{'stock':>9}{'treadle':>9}{'ratio':>7}  equal to DuckDB's")
        ratios = {}
        for number in options.queries or texts:
            ratios[number] = one(connection, applications, number, texts[number], options.rounds)
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        worst = sorted(ratios, key=lambda number: -ratios[number])[:5]
        print(f"{len(ratios)} queries, geometric mean {mean:.3f} × of stock's time")
        print("slowest beside stock:", ", ".join(f"q{n} {ratios[n]:.2f}" for n in worst))
        print(f"more than 1.1 ×: {sum(ratio > 1.1 for ratio in ratios.values())}")


def one(
    connection: duckdb.DuckDBPyConnection,
    applications: dict[str, Application],
    number: int,
    text: str,
    rounds: int,
) -> float:
    """Run a query, print its line, and return the ratio of the times."""
    # Quoted names, in Spark's way.
    query = re.sub(r'"([^"]+)"', r"`\1`", text).rstrip().rstrip(";")
    seconds: dict[str, list[float]] = {kind: [] for kind in applications}
    answers = {}
    for turn in range(rounds + 1):
        for kind, application in applications.items():
            application.begin(f"q{number}", query)
            answers[kind] = application.result()
            if turn:
                seconds[kind].append(answers[kind]["ended"] - answers[kind]["begun"])
    expected = connection.sql(text).fetchall()
    found = {kind: answers[kind]["rows"] for kind in answers}
    said = judged(found, expected)
    if said != "yes" and LIMIT.search(query):
        whole = connection.sql(LIMIT.sub("", text.rstrip())).fetchall()
        for kind, application in applications.items():
            application.begin(f"q{number} whole", LIMIT.sub("", query))
            found[kind] = application.result()["rows"]
        said = f"{judged(found, whole)}, without its limit"
    took = {kind: statistics.median(times) for kind, times in seconds.items()}
    ratio = took["treadle"] / took["stock"]
    print(
        f"{number:5}{len(expected):7}{took['stock']:8.2f}s{took['treadle']:8.2f}s{ratio:7.2f}  {said}",
        flush=True,
    )
    return ratio


def judged(found: dict[str, list[Any]], expected: list[Any]) -> str:
    """Whether the rows are the same."""
    if not is_equal(found["treadle"], found["stock"], SPARK):
        return "NO: Treadle's are not stock's"
    return "yes" if is_equal(found["treadle"], expected, DUCKDB) else "no, stock's are not, either"


if __name__ == "__main__":
    main()
