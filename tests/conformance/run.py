"""Run Dask's own tests, which its wheel ships, on Treadle: each that passes with Dask must pass.

The tests run with a plugin: treadle_conformance in place of Dask's local schedulers,
treadle_distributed in place of distributed's client and clusters (xarray's tests as well), or
treadle_ipyparallel in place of ipyparallel's client and clusters, for its tests of views. Those that
do not pass, skipped ones included, then run again without it, in the same environment: what passes
there is a deviation, and must be listed with its reason in deviations.txt. With forced_p2p, Dask's
tests use P2P in place of its other shuffles, and those that do not pass run again on distributed.
The run fails

- when there is a deviation that is not listed, or a listed one that passes;
- when Dask alone would run a test that did not run here;
- when fewer calls, or fewer shuffles, reached Treadle than the suite is known to bring.

Outcomes and the logs of the second runs are left in .cache/conformance/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "conformance"
DEVIATIONS = HERE / "deviations.txt"


@dataclass(frozen=True)
class Suite:
    """Some of the tests of Dask, distributed, xarray or ipyparallel."""

    name: str
    targets: tuple[str, ...]  # files and folders, relative to site-packages or the checkout
    calls: int  # calls that reach Treadle at least: about nine tenths of those counted
    plugin: str = "treadle_conformance"
    without: tuple[str, ...] = ()  # files among the targets that another suite has
    options: tuple[str, ...] = ()  # of the plugin
    always: tuple[str, ...] = ()  # options of pytest with Treadle and without
    from_source: bool = False  # the targets are in a checkout: --source
    seconds: int = 300  # for one test
    shuffles: int = 0  # P2P shuffles that reach Treadle at least
    section: str = ""  # of deviations.txt
    folders: tuple[str, ...] = (".",)  # where a checkout may have the targets


ON_PROCESSES = "dask/tests/test_multiprocessing.py"
ON_DISTRIBUTED = "dask/tests/test_distributed.py"
FRAMES_ON_DISTRIBUTED = "dask/dataframe/dask_expr/tests/test_distributed.py"

FORCED_P2P = ("-p", "forced_p2p")


FULL = (
    Suite("array", ("dask/array",), 26_000),
    Suite("dataframe", ("dask/dataframe",), 38_000, without=(FRAMES_ON_DISTRIBUTED,)),
    Suite("bag", ("dask/bag",), 480),
    Suite(
        "core",
        ("dask/tests", "dask/bytes", "dask/diagnostics", "dask/widgets"),
        440,
        without=(ON_DISTRIBUTED, ON_PROCESSES),
    ),
    Suite("processes", (ON_PROCESSES,), 20),
    Suite(
        "distributed",
        (ON_DISTRIBUTED, FRAMES_ON_DISTRIBUTED),
        98,
        "treadle_distributed",
        shuffles=34,
    ),
    Suite(
        "p2p",
        (
            "dask/array/tests/test_rechunk.py",
            "dask/dataframe/dask_expr/tests/test_merge.py",
            "dask/dataframe/dask_expr/tests/test_partitioning_knowledge.py",
            "dask/dataframe/dask_expr/tests/test_shuffle.py",
            "dask/dataframe/tests/test_groupby.py",
            "dask/dataframe/tests/test_merge_column_and_index.py",
            "dask/dataframe/tests/test_multi.py",
            "dask/dataframe/tests/test_shuffle.py",
        ),
        5_700,
        "treadle_distributed",
        always=FORCED_P2P,
        shuffles=4_600,
        section="p2p",
    ),
    # On Dask's own scheduler and workers: Treadle moves the rows only.
    Suite(
        "accelerated",
        (
            "dask/array/tests/test_rechunk.py",
            "dask/dataframe/dask_expr/tests/test_merge.py",
            "dask/dataframe/dask_expr/tests/test_shuffle.py",
            "dask/dataframe/tests/test_merge_column_and_index.py",
            "dask/dataframe/tests/test_shuffle.py",
        ),
        0,
        "accelerated",
        always=FORCED_P2P,
        shuffles=100,
        section="p2p",
    ),
    Suite("xarray-distributed", ("xarray/tests/test_distributed.py",), 85, "treadle_distributed"),
    Suite(
        "xarray-dask",
        ("xarray/tests/test_dask.py",),
        350,
        "treadle_distributed",
        options=("--treadle-default-client",),
    ),
    Suite(
        "ipyparallel",
        (
            "ipyparallel/tests/test_asyncresult.py",
            "ipyparallel/tests/test_lbview.py",
            "ipyparallel/tests/test_magics.py",
            "ipyparallel/tests/test_view.py",
        ),
        760,
        "treadle_ipyparallel",
    ),
)
SUBSET = (
    Suite(
        "subset",
        (
            "dask/array/tests/test_overlap.py",
            "dask/array/tests/test_reductions.py",
            "dask/array/tests/test_slicing.py",
            "dask/bag/tests/test_bag.py",
            "dask/dataframe/dask_expr/tests/test_groupby.py",
            "dask/dataframe/dask_expr/tests/test_shuffle.py",
            "dask/dataframe/tests/test_shuffle.py",
            "dask/diagnostics/tests",
            "dask/tests/test_base.py",
            "dask/tests/test_callbacks.py",
            "dask/tests/test_delayed.py",
            "dask/tests/test_local.py",
            "dask/tests/test_threaded.py",
            "dask/tests/test_traceback.py",
        ),
        14_000,
    ),
    Suite(
        "subset-distributed",
        (
            f"{ON_DISTRIBUTED}::test_annotations_blockwise_unpack",
            f"{ON_DISTRIBUTED}::test_await",
            f"{ON_DISTRIBUTED}::test_blockwise_numpy_args",
            f"{ON_DISTRIBUTED}::test_client_compute_parquet",
            f"{ON_DISTRIBUTED}::test_combo_of_layer_types",
            f"{ON_DISTRIBUTED}::test_default_scheduler_on_worker",
            f"{ON_DISTRIBUTED}::test_delayed_future",
            f"{ON_DISTRIBUTED}::test_futures_in_graph",
            f"{ON_DISTRIBUTED}::test_get_scheduler_default_client_config_interleaving",
            f"{ON_DISTRIBUTED}::test_map_partitions_df_input",
            f"{ON_DISTRIBUTED}::test_persist",
            f"{ON_DISTRIBUTED}::test_release_persisted_futures_without_gc",
            f"{ON_DISTRIBUTED}::test_serializable_groupby_agg",
            "xarray/tests/test_distributed.py::test_async",
            "xarray/tests/test_distributed.py::test_serializable_locks",
        ),
        28,
        "treadle_distributed",
    ),
    Suite(
        "subset-p2p",
        ("dask/dataframe/dask_expr/tests/test_shuffle.py",),
        30,
        "treadle_distributed",
        always=FORCED_P2P,
        shuffles=15,
        section="p2p",
    ),
    Suite(
        "subset-xarray-dask",
        ("xarray/tests/test_dask.py",),
        350,
        "treadle_distributed",
        options=("--treadle-default-client",),
    ),
)


# distributed's own, of which its wheel ships none.
OF_DISTRIBUTED = Suite(
    "distributed-source",
    tuple(
        f"test_{name}.py"
        for name in (
            *("actor", "as_completed", "client", "client_executor", "client_loop"),
            *("dask_collections", "events", "failed_workers", "locks", "memory_sampler"),
            *("multi_locks", "priorities", "progress", "progress_widgets", "progressbar"),
            *("publish", "queues", "resources", "scheduler_plugin", "semaphore", "spans", "stress"),
            *("task_stream", "variable", "versions", "worker_client", "worker_plugin"),
        )
    ),
    3_100,
    "treadle_distributed",
    always=("-p", "distributed_source"),
    from_source=True,
    seconds=60,
)
# The part of it that `make test` runs where it finds the checkout.
PART_OF_DISTRIBUTED = replace(
    OF_DISTRIBUTED,
    name="subset-distributed-source",
    targets=tuple(
        f"test_{name}.py"
        for name in (
            *("client_loop", "events", "locks", "multi_locks", "publish", "queues", "resources"),
            *("semaphore", "variable", "versions"),
        )
    ),
    calls=100,
)
DEPLOY_OF_DISTRIBUTED = Suite(
    "distributed-deploy",
    tuple(
        f"test_{name}.py"
        for name in (
            *("adaptive", "adaptive_core", "cluster", "deploy_utils", "local", "spec_cluster"),
            "subprocess",
        )
    ),
    26,
    "treadle_distributed",
    always=("-p", "distributed_source"),
    from_source=True,
    seconds=90,
    section="deploy",
    folders=("deploy", "deploy/tests"),
)
SHUFFLES_OF_DISTRIBUTED = Suite(
    "distributed-shuffles",
    ("distributed/shuffle/tests",),
    600,
    "treadle_distributed",
    # What is installed comes before a checkout.
    always=("-p", "distributed_shuffles", "--import-mode=append"),
    from_source=True,
    seconds=60,
    shuffles=1100,
)
# Where a checkout of them is beside this one.
SOURCE = HERE.parents[2] / "shared" / "peers" / "distributed"


def root_of(suite: Suite, source: Path) -> Path | None:
    """Where the targets of a suite are."""
    if not suite.from_source:
        return site_packages(suite.targets[0])
    places = (place / folder for place in (source, *source.parents) for folder in suite.folders)
    file = suite.targets[0].partition("::")[0]
    return next((place for place in places if (place / file).exists()), None)


def site_packages(target: str) -> Path:
    """Where the package is installed that a target belongs to."""
    package = target.partition("/")[0]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed here: run this with `make conformance`.")
    return Path(spec.origin).parents[1]


# A deviation of this reason passes now and then: nothing that Treadle does decides it.
BY_CHANCE = "by chance: "


class Pytest:
    """Runs pytest on tests of installed packages, away from the project's own settings."""

    def __init__(self, workers: int, source: Path) -> None:
        self.workers = workers
        self.source = source

    def collect(self, suite: Suite, outcomes: Path) -> set[str]:
        """The ids of the tests that Dask alone would run."""
        log = outcomes.with_suffix(".log")
        options = ("--collect-only", "-qq", *self._without(suite))
        self._run(suite, suite.targets, outcomes, *options, log=log)
        return set(json.loads(outcomes.read_text()))

    def with_dask(self, suite: Suite, targets: list[str], outcomes: Path) -> dict[str, str]:
        """Outcome by test id under Dask's own schedulers."""
        log = outcomes.with_suffix(".log")
        self._run(suite, targets, outcomes, f"--numprocesses={self.workers}", log=log)
        return json.loads(outcomes.read_text())

    def with_treadle(self, suite: Suite, outcomes: Path) -> tuple[int, dict[str, str]]:
        """Exit status, and outcome by test id, under Treadle."""
        options = ("-p", suite.plugin, f"--treadle-calls={suite.calls}", *suite.options)
        if suite.shuffles:
            options += (f"--treadle-shuffles={suite.shuffles}",)
        options = (f"--numprocesses={self.workers}", *options, *self._without(suite))
        status = self._run(suite, suite.targets, outcomes, *options)
        return status, json.loads(outcomes.read_text())

    def _without(self, suite: Suite) -> list[str]:
        return [f"--ignore={site_packages(file) / file}" for file in suite.without]

    def _run(
        self,
        suite: Suite,
        targets: list[str] | tuple[str, ...],
        outcomes: Path,
        *options: str,
        log: Path | None = None,
    ) -> int:
        outcomes.write_text("{}")
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        # Dask's tests start many interpreters, which would compile every module anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryDirectory() as cwd:  # where some tests leave files
            arguments = Path(cwd, "arguments")
            root = root_of(suite, self.source)
            assert root is not None
            arguments.write_text("\n".join(str(root / target) for target in targets))
            command = [
                *(sys.executable, "-m", "pytest", "--quiet", "--tb=short"),
                *("-c", str(HERE / "pytest.ini"), f"--rootdir={root}"),
                *(f"--confcutdir={root}", "-p", "outcomes", f"--outcomes={outcomes}"),
                *(f"--timeout={suite.seconds}", *options, *suite.always, f"@{arguments}"),
            ]
            with open(log or os.devnull, "w") as file:
                return subprocess.run(
                    command,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file if log else None,
                    stderr=subprocess.STDOUT if log else None,
                    check=False,
                ).returncode


def read_deviations() -> dict[tuple[str, str], str]:
    """Reason by section and test id, of those that the installed Dask has."""
    deviations = {}
    section = ""
    for line in DEVIATIONS.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            test, _, reason = line.partition("  # ")
            if not reason:
                raise SystemExit(f"{DEVIATIONS.name}: no reason is given for {test}")
            if holds(reason, version("dask")):
                deviations[section, test] = reason
    return deviations


def holds(reason: str, installed: str) -> bool:
    """Whether a reason is one for the installed Dask: it may begin with ``dask<VERSION:`` or ``>=``."""
    found = re.match(r"dask(<|>=)([0-9.]+): ", reason)
    if found is None:
        return True
    numbers, limit = (tuple(map(int, text.split(".")[:3])) for text in (installed, found[2]))
    return (numbers < limit) == (found[1] == "<")


def belongs(section: str, test: str, suite: Suite) -> bool:
    """Whether the deviation is one of the suite's."""
    if section != suite.section:
        return False
    return test.startswith(suite.targets) and not test.startswith(suite.without or ("::",))


def check(suite: Suite, pytest: Pytest) -> tuple[dict[str, str], list[str]]:
    """Run one suite; outcome by test id, and what is wrong."""
    print(f"--- tests on Treadle: {suite.name}", flush=True)
    started = time.monotonic()
    expected = pytest.collect(suite, CACHE / f"{suite.name}-collected.json")
    status, outcomes = pytest.with_treadle(suite, CACHE / f"{suite.name}-treadle.json")
    undecided = sorted(test for test, outcome in outcomes.items() if outcome != "passed")
    under_dask = {}
    if undecided:
        print(
            f"{len(undecided)} did not pass, or were skipped: the same with Dask alone", flush=True
        )
        under_dask = pytest.with_dask(suite, undecided, CACHE / f"{suite.name}-dask.json")

    listed = read_deviations().items()
    deviations = {test: why for (part, test), why in listed if belongs(part, test, suite)}
    problems = []
    if status not in (0, 1):  # 1: tests failed, which is judged below; 16: too few calls
        problems.append(f"pytest ended with status {status}, see above")
    if not expected:
        problems.append(f"no test was collected, see {CACHE}/{suite.name}-collected.log")
    for test in sorted(expected - outcomes.keys()):
        problems.append(f"did not run: {test}")
    for test in undecided:
        theirs = under_dask.get(test, "not run")
        if theirs in ("passed", "not run") and test not in deviations:
            problems.append(f"{outcomes[test]} with Treadle, {theirs} with Dask: {test}")
    for test in sorted(deviations):
        may_pass = ("not run",) if deviations[test].startswith(BY_CHANCE) else ("passed", "not run")
        if outcomes.get(test, "not run") in may_pass:
            problems.append(f"listed as a deviation, but {outcomes.get(test, 'not run')}: {test}")

    for test in undecided:
        if outcomes[test] in ("failed", "error") and under_dask.get(test) in ("failed", "error"):
            print(f"fails with Dask alone too: {test}")
    for problem in problems:
        print(problem)
    print(f"--- {suite.name}: {time.monotonic() - started:.0f} s", flush=True)
    return outcomes, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subset", action="store_true", help="only the part that `make test` runs")
    from_source = (
        OF_DISTRIBUTED,
        PART_OF_DISTRIBUTED,
        DEPLOY_OF_DISTRIBUTED,
        SHUFFLES_OF_DISTRIBUTED,
    )
    names = [suite.name for suite in (*FULL, *SUBSET, *from_source)]
    parser.add_argument("--suite", action="append", choices=names, help="one of all suites")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--source", type=Path, default=SOURCE, help="the tests of a checkout of distributed"
    )
    options = parser.parse_args()
    source = options.source.resolve()
    # A whole checkout, or its tests alone.
    source = next(filter(Path.is_dir, [source / "distributed" / "tests"]), source)
    known = [*FULL, *SUBSET]
    suites = list(SUBSET if options.subset else FULL)
    for suite in from_source:
        if root_of(suite, source) is not None:
            known.append(suite)
        elif suite.name in (options.suite or ()):
            parser.error(f"{source} has no tests for {suite.name}: give --source PATH")
    if options.subset and PART_OF_DISTRIBUTED in known:
        suites.append(PART_OF_DISTRIBUTED)
    elif options.subset:
        print("no checkout of distributed is beside this one: its own tests are left out")
    if options.suite:
        suites = [suite for suite in known if suite.name in options.suite]

    # What was started in the background ignores interrupts, and so would the tests about them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    CACHE.mkdir(parents=True, exist_ok=True)
    pytest = Pytest(options.workers, source)
    passed = wrong = skipped = 0
    for suite in suites:
        outcomes, problems = check(suite, pytest)
        passed += sum(outcome == "passed" for outcome in outcomes.values())
        skipped += sum(outcome == "skipped" for outcome in outcomes.values())
        wrong += len(problems)
    print(f"Dask {version('dask')}, distributed {version('distributed')}")
    print(f"conformance: {passed} passed, {wrong} failed, {skipped} skipped")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
