"""What a worker is told has one name and one meaning, whoever starts it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner
from dask.system import CPU_COUNT
from distributed.system import MEMORY_LIMIT

import treadle
from client_support import AGAINST, SOON
from treadle.__main__ import main
from treadle.cli._worker_options import FLAGS
from treadle.common._worker_options import OF_PROCESSES, WorkerOptions
from treadle.deploy import Scheduler, SpecCluster, Worker
from treadle.mpi.__main__ import _options as mpi

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the options are Treadle's")

NAMES = {field.name for field in fields(WorkerOptions)}

GIVEN: dict[str, Any] = {
    "nthreads": 3,
    "memory_limit": "1B",
    "resources": {"a b": 1, "x=y": 0.5},
    "local_directory": Path(tempfile.gettempdir()),
    "env": {"SECRET": "s3cret"},
    "preload": "module",
    "lifetime": timedelta(hours=1),
    "lifetime_stagger": "1 minute",
    "lifetime_restart": True,
}

# What the cores' share of the memory is for one thread.
SHARE = int(MEMORY_LIMIT * min(1.0, 1 / CPU_COUNT))


def limits(client: treadle.Client) -> list[int]:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return [worker["memory_limit"] for worker in workers]


def test_each_option_has_its_flag_in_each_command() -> None:
    # The environment is that of the command.
    assert FLAGS.keys() == NAMES - {"env"}
    for command, arguments, names in [
        (main, ["worker", "--help"], FLAGS.keys()),
        (mpi, ["--help"], FLAGS.keys() - OF_PROCESSES),
    ]:
        shown = CliRunner().invoke(command, arguments).output
        assert [name for name in names if f"--{name.replace('_', '-')}" not in shown] == []


def test_each_option_reaches_each_constructor() -> None:
    """Whether it is in its signature or not."""
    assert GIVEN.keys() == NAMES
    assert Worker("treadle://127.0.0.1:1", "one", **GIVEN)._options == WorkerOptions.of(GIVEN)
    given = {name: GIVEN[name] for name in NAMES - {"nthreads"}}
    with treadle.LocalCluster(0, 3, processes=True, dashboard_address=None, **given) as cluster:
        own = replace(WorkerOptions.of(GIVEN), local_directory=None)
        assert cluster._worker_options == own
    for take in (treadle.LocalCluster, treadle.Client):
        with pytest.raises(TypeError, match=r"treadle\.LocalCluster does not take color, nthreads"):
            take(color="red", nthreads=1)
    with pytest.raises(TypeError, match=r"treadle\.deploy\.Worker does not take color"):
        Worker("treadle://127.0.0.1:1", "one", color="red")
    with pytest.raises(TypeError, match=r"treadle\.mpi\.initialize does not take color, lifetime"):
        treadle.mpi.initialize(color="red", lifetime="1h")


def test_a_process_gets_the_same_options_but_the_environment() -> None:
    options = WorkerOptions.of(GIVEN)
    # Unlike 1, it is no share.
    assert options.memory_limit == 1
    text = options.as_argument()
    assert "s3cret" not in text
    told = WorkerOptions.of_argument(text)
    assert told == WorkerOptions.of({**GIVEN, "env": None})
    assert (told.lifetime, told.lifetime_stagger, told.preload) == (3600.0, 60.0, ("module",))


def test_by_default_the_cores_and_the_memory_are_shared_out() -> None:
    assert WorkerOptions.of({}).nthreads == CPU_COUNT
    for none in (None, 0):
        # As in distributed.
        assert WorkerOptions.of({"nthreads": none}, workers=CPU_COUNT).nthreads == 1
    assert WorkerOptions.of({"nthreads": 1}).memory_limit == SHARE
    assert WorkerOptions.of({"nthreads": 1}, share=0.5).memory_limit == MEMORY_LIMIT // 2


def test_workers_of_a_specification_have_the_share_of_their_threads() -> None:
    """As ``treadle worker`` and distributed's have: together they have no more than there is."""
    worker = Worker("treadle://127.0.0.1:1", "one", nthreads=1)
    assert worker._options.memory_limit == SHARE
    worker = Worker("treadle://127.0.0.1:1", "one", nthreads=0)
    assert (worker._options.nthreads, worker._options.memory_limit) == (CPU_COUNT, MEMORY_LIMIT)


def test_a_cluster_that_begins_without_workers_shares_the_memory_by_threads() -> None:
    with treadle.LocalCluster(0, 1, dashboard_address=None) as cluster:
        assert cluster._worker_options.memory_limit == SHARE
    with treadle.LocalCluster(4, 0, processes=False, dashboard_address=None) as cluster:
        assert cluster._worker_options.nthreads == max(1, CPU_COUNT // 4)
        assert cluster._worker_options.memory_limit == MEMORY_LIMIT // 4


def test_none_is_no_limit_of_a_clients_workers() -> None:
    with treadle.Client(memory_limit=None, set_as_default=False) as client:
        assert limits(client) == [0]


def test_resources_of_processes_may_have_any_name() -> None:
    with treadle.Client(workers=1, resources={"big memory": 1}, set_as_default=False) as client:
        found = client.submit(os.getpid, resources={"big memory": 1}).result(timeout=SOON)
        assert found != os.getpid()


def test_workers_of_a_specification_have_what_distributeds_have(tmp_path: Path) -> None:
    preload = tmp_path / "preloaded.py"
    preload.write_text("import os\ndef dask_setup(worker):\n    os.environ['PRELOADED'] = 'yes'\n")
    options = {"env": {"MINE": "here"}, "preload": [str(preload)], "lifetime": timedelta(hours=1)}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None}}
    workers = {"one": {"cls": Worker, "options": {"nthreads": 1, **options}}}

    def seen() -> list[str | None]:
        return [os.environ.get(name) for name in ("MINE", "PRELOADED")]

    with SpecCluster(workers, scheduler) as cluster, treadle.Client(cluster) as client:
        assert list(client.run(seen).values()) == [["here", "yes"]]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"threads_per_worker": -1}, "^threads_per_worker=-1: give an integer from 0"),
        ({"memory_limit": "lots"}, "^memory_limit='lots': give bytes"),
        (
            {"lifetime": "1h", "lifetime_stagger": "2h"},
            "longer lifetime, or a shorter lifetime_sta",
        ),
    ],
)
def test_an_error_names_the_keyword_and_not_the_flag(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        treadle.LocalCluster(1, **given)


def test_resources_of_the_configuration_are_those_of_all_workers() -> None:
    with dask.config.set({"distributed.worker.resources": {"GPU": 2}}):
        assert WorkerOptions.of({}).resources == {"GPU": 2.0}
        assert WorkerOptions.of({"resources": {}}).resources == {}
