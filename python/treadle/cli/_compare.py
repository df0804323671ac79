"""The command ``treadle bench compare``: a user's script on Dask's own scheduler and on Treadle, in turns."""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from dask.system import CPU_COUNT

from treadle.cli._basics import Output, json_option

__all__ = ["compare"]

ENGINES = ("dask", "treadle")
_LINES = 15


@dataclass
class Run:
    """What one run of the script took, in seconds, and what it gave."""

    seconds: float
    #: In ``compute`` and ``persist``, and of that in the scheduler that they called.
    computing: float
    scheduling: float
    #: In the functions of tasks, all threads together; only of a run that was profiled.
    tasks: float
    results: list[tuple[str, Any]]
    output: str


class _Failed(Exception):
    """The script failed on an engine."""


@click.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs on each engine."
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=600,
    show_default=True,
    help="Seconds for one run.",
)
@json_option
def compare(
    script: Path, arguments: tuple[str, ...], rounds: int, timeout: float, json_path: str | None
) -> None:
    """Run SCRIPT on Dask's own scheduler and on Treadle, in turns.

    Nothing in the script has to change: on Treadle it runs after `treadle.install()`, and what it imports
    from distributed as Client or LocalCluster are Treadle's. Results of `compute`, and what the script
    prints, are compared; the order of a data frame's rows does not count. The status is 0 if they are equal, 1 if they differ or if the script fails.
    Imports of Dask are not counted. ARGUMENTS after `--` are the script's.
    """
    runs: dict[str, list[Run]] = {engine: [] for engine in ENGINES}
    try:
        for number in range(rounds):
            for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
                runs[engine].append(_run(engine, script, arguments, timeout))
                click.echo(
                    f"{engine}, run {number + 1}: {_time(runs[engine][-1].seconds)}", err=True
                )
        profiles = {
            engine: _run(engine, script, arguments, timeout, profile=True) for engine in ENGINES
        }
    except _Failed as error:
        click.echo(error, err=True)
        sys.exit(1)
    differs = _difference(runs)
    medians = {engine: _median(runs[engine]) for engine in ENGINES}
    output = Output(json_path)
    output.table(["", "Dask", "Treadle"], _rows(medians, profiles))
    output.say("* In a run of their own, with a profiler. 0 where a cluster ran them.")
    output.say(_verdict(medians, runs, differs))
    figures = {
        engine: {
            "seconds": medians[engine].seconds,
            "computing": medians[engine].computing,
            "scheduling": medians[engine].scheduling,
            "tasks": profiles[engine].tasks,
        }
        for engine in ENGINES
    }
    output.result({**figures, "rounds": rounds, "difference": differs})
    sys.exit(1 if differs else 0)


def _run(
    engine: str, script: Path, arguments: tuple[str, ...], timeout: float, profile: bool = False
) -> Run:
    with tempfile.TemporaryDirectory(prefix="treadle-compare-") as folder:
        noted = Path(folder, "noted")
        module = ("-m", "treadle.cli._compare_run", engine, str(noted), "01"[profile])
        try:
            done = subprocess.run(
                [sys.executable, *module, str(script), *arguments],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=timeout,
                check=False,
                # The order of sets of strings, and of rows that are grouped by them, is the same.
                env={"PYTHONHASHSEED": "0", **os.environ},
            )
        except subprocess.TimeoutExpired as error:
            text = f"{script} on {engine} took more than {timeout:g} s: --timeout allows more"
            raise _Failed(text) from error
        if done.returncode or not noted.exists():
            last = "\n".join(done.stderr.splitlines()[-_LINES:])
            raise _Failed(f"{script} failed on {engine} (status {done.returncode}):\n{last}")
        return Run(**pickle.loads(noted.read_bytes()), output=done.stdout)


def _difference(runs: dict[str, list[Run]]) -> str | None:
    """Return what differs: between the engines, or, said so, between runs of the same one."""
    from treadle.cli._same_results import difference

    dask, treadle = (runs[engine][0] for engine in ENGINES)
    differs = difference(dask.results, treadle.results)
    if differs is None and dask.output != treadle.output:
        pairs = zip(dask.output.splitlines(), treadle.output.splitlines(), strict=False)
        lines = next(((a, b) for a, b in pairs if a != b), ("", ""))
        differs = "what is printed: {!r:.80}, and {!r:.80}".format(*lines)
    if differs is None:
        return None
    for engine in ENGINES:
        first, *others = runs[engine]
        if any(difference(first.results, other.results) for other in others):
            return f"{differs} (they differ between runs on {engine}, too)"
    return differs


def _median(runs: list[Run]) -> Run:
    """Return the run in the middle."""
    middle = statistics.median_low(run.seconds for run in runs)
    return next(run for run in runs if run.seconds == middle)


def _rows(medians: dict[str, Run], profiles: dict[str, Run]) -> list[list[str]]:
    parts = {
        "the script": [run.seconds for run in medians.values()],
        "  outside of compute": [run.seconds - run.computing for run in medians.values()],
        "  Dask: graphs": [run.computing - run.scheduling for run in medians.values()],
        "  running the graphs": [run.scheduling for run in medians.values()],
        f"    functions, over {CPU_COUNT} cores *": [
            run.tasks / CPU_COUNT for run in profiles.values()
        ],
    }
    return [[name, *map(_time, values)] for name, values in parts.items()]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1e3 * seconds:.1f} ms"


def _verdict(medians: dict[str, Run], runs: dict[str, list[Run]], differs: str | None) -> str:
    dask, treadle = (medians[engine].seconds for engine in ENGINES)
    faster = "Treadle" if treadle <= dask else "Dask"
    ratio = max(dask, treadle) / min(dask, treadle)
    calls = len(runs["dask"][0].results)
    equal = f"the results differ: {differs}" if differs else f"equal results ({calls} of compute)"
    return (
        f"{faster} was {ratio:.2f} × as fast (Dask {_time(dask)}, Treadle {_time(treadle)}, medians of "
        f"{len(runs['dask'])}); {equal}."
    )
