"""TPC-H on Spark, whose shuffles are at shuffle servers: ``make demo-spark``.

A server is killed in the middle of one query, and an executor after a stage of another one. Results are compared with
DuckDB's. The same runs on stock Spark, which loses the same executor.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from rich import box
from rich.console import Console
from rich.table import Table

import page
from application import Application, Task
from queries import QUERIES, TABLES, plain
from service import Service

# In which query what is killed, after how many of its stages.
SERVER_IS_KILLED, EXECUTOR_IS_KILLED = ("Q9", 3), ("Q18", 3)


@dataclass
class Run:
    """All queries on one kind of shuffle. ``losses``: when, in which query, and what."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    losses: list[tuple[float, str, str]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def again(self, query: str | None = None) -> int:
        """How many maps had finished, and ran again."""
        done = Counter(
            (task.rows, task.partition)
            for task in self.tasks
            if task.is_map and task.is_done and query in (None, task.query)
        )
        return sum(count - 1 for count in done.values())

    def seconds(self, query: str) -> float:
        return float(self.answers[query]["ended"] - self.answers[query]["begun"])


def run(application: Application, service: Service | None, say: Any) -> Run:
    """Run all queries. ``None``: stock Spark."""
    done = Run()

    def loses(query: str, what: str) -> None:
        done.losses.append((time.time(), query, what))
        say(f"  {query}: {what}")

    for name, query in QUERIES.items():
        application.begin(name, query)
        if service is not None and name == SERVER_IS_KILLED[0]:
            application.after(SERVER_IS_KILLED[1], lambda: service.kill("b"))
            loses(name, "kill -9 of server b")
            # As whoever runs the service would do.
            service.begin("c")
        if name == EXECUTOR_IS_KILLED[0]:
            application.after(EXECUTOR_IS_KILLED[1], application.kill_executor)
            loses(name, "kill -9 of executor")
        done.answers[name] = application.result()
        say(f"  {name}: {done.seconds(name):.1f} s")
    done.tasks = application.stop()
    return done


def references(data: Path) -> dict[str, list[list[str | None]]]:
    """The results of DuckDB."""
    connection = duckdb.connect()
    for table in TABLES:
        connection.sql(f"create view {table} as from read_parquet('{data / table}.parquet')")
    return {
        name: [[plain(value) for value in row] for row in connection.sql(query).fetchall()]
        for name, query in QUERIES.items()
    }


def table(treadle: Run, stock: Run) -> tuple[list[str], list[list[str]]]:
    """What each query took, and what was lost in it."""
    heads = ["query", "rows", "Treadle", "stock", "shuffled", "lost in it", "maps again", "stock's"]
    rows = []
    for name in QUERIES:
        written = sum(task.written for task in treadle.tasks if task.query == name and task.is_done)
        lost = [
            what.removeprefix("kill -9 of ") for _, query, what in treadle.losses if query == name
        ]
        rows.append(
            [
                name,
                str(len(treadle.answers[name]["rows"])),
                f"{treadle.seconds(name):.1f} s",
                f"{stock.seconds(name):.1f} s",
                f"{written / 1e6:.0f} MB",
                ", ".join(lost),
                str(treadle.again(name)),
                str(stock.again(name)),
            ]
        )
    return heads, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("treadle-demo"), help="folder for spark.html"
    )
    parser.add_argument("--scale", default="1", help="TPC-H's scale factor")
    options = parser.parse_args()
    python, jar = os.environ["TREADLE_SPARK_PYTHON"], os.environ["TREADLE_SPARK_JAR"]
    console = Console(highlight=False)
    say = console.print
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-spark-")))
        data = directory / "data"
        say(f"TPC-H at scale {options.scale}: making its tables")
        folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        generator = shutil.which("tpchgen-cli", path=folders)
        if generator is None:
            raise SystemExit("tpchgen-cli is missing: use `make demo-spark`")
        make = [generator, "parquet", "-s", options.scale, "--output-dir", str(data)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        expected = references(data)

        service = Service(stack, directory)
        runs = {}
        for kind, settings in (("treadle", service.settings()), ("stock", {})):
            say("Spark on two shuffle servers" if settings else "Stock Spark")
            application = Application(python, jar, directory / kind, data, settings)
            stack.callback(application.kill)
            runs[kind] = run(application, service if settings else None, say)
            for name in QUERIES:
                if runs[kind].answers[name]["rows"] != expected[name]:
                    raise SystemExit(f"{name} on {kind}: not the rows of DuckDB")

    treadle, stock = runs["treadle"], runs["stock"]
    heads, rows = table(treadle, stock)
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0))
    for number, head in enumerate(heads):
        shown.add_column(head, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    say(shown)
    say("[green]✓ all results equal DuckDB's[/green]")
    if not treadle.answers["skewed join"]["skew"]:
        raise SystemExit("the skewed join was not split: give a larger --scale")
    if treadle.again():
        raise SystemExit(f"{treadle.again()} finished maps ran again on Treadle")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "spark.html"
    file.write_text(page.page(treadle, stock, heads, rows, options.scale), encoding="utf-8")
    figures = options.out / "spark.json"
    figures.write_text(json.dumps([dict(zip(heads, row, strict=True)) for row in rows], indent=1))
    say(f"Report: {file}", soft_wrap=True)


if __name__ == "__main__":
    main()
