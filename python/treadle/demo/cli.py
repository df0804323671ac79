"""The command ``python -m treadle demo``."""

from __future__ import annotations

import tempfile
import time
from importlib import import_module
from pathlib import Path

import click

from treadle.demo.errors import DemoError, missing


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("treadle-demo"),
    show_default=True,
    help="Folder for trace.json, cluster.json and report.html.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="Worker threads [default: as Dask chooses]."
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Partitions of the flights.",
)
@click.option(
    "--rows", type=click.IntRange(min=1000), help="Take only this many of the 336,776 flights."
)
@click.option(
    "--progress/--no-progress", default=True, help="Show progress bars while the tasks run."
)
def demo(out: Path, threads: int | None, partitions: int, rows: int | None, progress: bool) -> None:
    """Analyse a year of New York flights with Dask on Treadle, and check it against pandas.

    First on threads of this process; then on two worker processes, one of which is killed in the
    middle. The exit status is 0 if all numbers are those of pandas.
    """
    try:
        for package in ("rich", "numpy", "pandas", "pyarrow", "dask.dataframe", "distributed"):
            _require(package)
        _run(out, threads, partitions, rows, progress)
    except DemoError as error:
        raise click.ClickException(str(error)) from error


def _require(package: str) -> None:
    try:
        import_module(package)
    except ImportError as error:
        raise missing(error.name or package) from error


def _run(out: Path, threads: int | None, partitions: int, rows: int | None, progress: bool) -> None:
    # Imported here, so that a missing package ends in a message and `--help` needs none of them.
    from rich.console import Console

    from treadle.demo import check, cluster, data, report, terminal
    from treadle.demo.run import run
    from treadle.demo.views import VIEWS, cluster_summary, summary, tiles

    console = Console(highlight=False)
    trace_file, report_file = out / "trace.json", out / "report.html"
    cluster_file = out / "cluster.json"
    with tempfile.TemporaryDirectory(prefix="treadle-demo-") as folder:
        tables = data.open_tables(Path(folder), rows)
        out.mkdir(parents=True, exist_ok=True)
        console.print(f"Dask on Treadle: {tables.flights:,} flights from New York in 2013")
        with terminal.progress_bars(console, shown=progress) as watch:
            outcome = run(
                tables, partitions=partitions, threads=threads, trace_file=trace_file, watch=watch
            )
        with console.status("The same in pandas"):
            start = time.perf_counter()
            references = check.references(tables)
            pandas_seconds = time.perf_counter() - start

        for name, view in VIEWS.items():
            check.compare(name, outcome.results[name], references[name])
            terminal.show_result(console, view, outcome.results[name])
        figures = summary(outcome, pandas_seconds)
        terminal.show_summary(console, figures)

        console.print(f"\n[bold]The same on {cluster.WORKERS} worker processes[/bold]")
        with terminal.future_bars(console, shown=progress) as show:
            again = cluster.run(
                tables, partitions=partitions, trace_file=cluster_file, show=show, say=console.print
            )

    for name in VIEWS:
        check.compare(name, again.results[name], references[name])
    cluster_figures = cluster_summary(again, outcome.wall)
    terminal.show_summary(console, cluster_figures, "The run on worker processes")
    main_figures = tiles(outcome, pandas_seconds)
    page = report.page(outcome, again, main_figures, figures, cluster_figures, tables.flights)
    report_file.write_text(page, encoding="utf-8")
    for title, file in (("Trace:  ", trace_file), ("Cluster:", cluster_file)):
        console.print(f"{title} {file} (open it in https://ui.perfetto.dev)", soft_wrap=True)
    console.print(f"Report:  {report_file}", soft_wrap=True)
