"""A pytest plugin that runs Dask's own tests on Treadle: `pytest -p treadle_conformance …`.

Setting Dask's configuration would not be enough: `assert_eq` and many tests name a scheduler
("sync", "threads"), collections carry a default one, and tests import `dask.get`,
`dask.threaded.get` and `dask.local.get_sync`. So each reference to Dask's three local schedulers is
replaced, everywhere in Dask, by one function, before any test is imported. What Dask's tests assert
about identity (`get_scheduler(scheduler="sync") is dask.local.get_sync`) then still holds.

The calls that arrive are counted and reported; with fewer than `--treadle-calls N` the exit status
is 16, whatever became of the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import dask
import dask.base
import pytest

import counted
import schedulers
import treadle
import treadle.processes
import treadle.sync
import treadle.threaded

# Tests about which scheduler Dask chooses when its configuration names none.
WITHOUT_CONFIGURED_SCHEDULER = (
    "dask/tests/test_base.py::test_compute_array_bag",
    "dask/tests/test_base.py::test_get_scheduler",
    "dask/tests/test_base.py::test_persist_array_bag",
)

# next() on these is atomic: tests call from several threads.
_sync_calls = itertools.count()
_threaded_calls = itertools.count()
_process_calls = itertools.count()


# Importable by name, because some tests pickle the scheduler that they use; named as in Dask, because
# pytest makes test ids of the names.
def get_sync(*args: Any, **kwargs: Any) -> Any:
    """`treadle.sync.get`, counted."""
    next(_sync_calls)
    return treadle.sync.get(*args, **kwargs)


def get(*args: Any, **kwargs: Any) -> Any:
    """`treadle.threaded.get`, counted."""
    next(_threaded_calls)
    return treadle.threaded.get(*args, **kwargs)


def get_processes(*args: Any, **kwargs: Any) -> Any:
    """`treadle.processes.get`, counted."""
    next(_process_calls)
    return treadle.processes.get(*args, **kwargs)


get_processes.__name__ = "get"


def _hide_frames() -> None:
    """Leave the two functions above out of users' tracebacks, as Dask does with its schedulers."""
    shortened = dask.config.get("admin.traceback.shorten")
    dask.config.update_defaults(
        {"admin": {"traceback": {"shorten": [*shortened, r"treadle_conformance\.py"]}}}
    )


schedulers.replace(get_sync, get, get_processes)
dask.base.named_schedulers["treadle"] = get
dask.base.named_schedulers["treadle-sync"] = get_sync
dask.base.named_schedulers["treadle-processes"] = get_processes
_hide_frames()


@pytest.fixture(autouse=True)
def treadle_configured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Treadle is the configured scheduler too, for collections whose default is another one."""
    if request.node.nodeid.partition("[")[0] in WITHOUT_CONFIGURED_SCHEDULER:
        yield
    else:
        with dask.config.set(scheduler="treadle"):
            yield


def pytest_addoption(parser: pytest.Parser) -> None:
    counted.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    counters = {
        "graphs in one thread": _sync_calls,
        "graphs in several": _threaded_calls,
        "graphs in processes": _process_calls,
    }
    config.pluginmanager.register(counted.Counts(config, counters), "treadle_counts")
