"""A pytest plugin that runs ipyparallel's tests of views on Treadle: `pytest -p treadle_ipyparallel …`.

`ipyparallel.Client` is what `treadle.Client.engines` is, wherever it is imported, before any test
is; the cluster that ipyparallel's fixtures start is Treadle's, with worker processes as engines.
All else of `ipyparallel.tests` stays.

The casts and tasks that arrive are counted and reported; with fewer than `--treadle-calls N` the
exit status is 16, whatever became of the tests.
"""

from __future__ import annotations

import itertools
from typing import Any

import dask
import ipyparallel
import ipyparallel.tests
import pytest
from ipyparallel import error

import counted
import treadle
from treadle.client import LocalCluster
from treadle.views import Engines
from treadle.views._transport import Transport

# Seconds for engines to join.
PATIENCE = 30.0

# next() on these is atomic: tests call from several threads.
_casts = itertools.count()
_tasks = itertools.count()

_clusters: list[LocalCluster] = []
# Engines whose tracebacks have no colours, as those that ipyparallel's fixtures start.
_plain: set[int] = set()


class _Counted(Transport):
    def cast(self, *args: Any, **kwargs: Any) -> int:
        next(_casts)
        return super().cast(*args, **kwargs)


class _Tasks(treadle.Client):
    def submit(self, *args: Any, **kwargs: Any) -> Any:
        next(_tasks)
        return super().submit(*args, **kwargs)


class Client(Engines):
    """What `treadle.Client.engines` is, with the parameters of `ipyparallel.Client`."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        client = _Tasks(_clusters[-1], set_as_default=False)
        super().__init__(client)
        client._engines = self
        self._transport.__class__ = _Counted
        new = [engine for engine in self.ids if engine not in _plain]
        if new:
            _plain.update(new)
            self.direct_view(new).execute("%colors nocolor", block=True)
            self.history.clear()


def add_engines(n: int = 1, profile: str = "iptest", total: bool = False) -> list[Any]:
    """Start more worker processes, until there are `n` if `total`."""
    cluster = _clusters[-1]
    before = len(cluster.workers)
    wanted = max(n, before) if total else before + n
    if wanted > before:
        cluster.scale(wanted)
        client = Client()
        try:
            client.wait_for_engines(wanted, timeout=PATIENCE)
        finally:
            client.close()
        # The new ones, too.
        Client().close()
    return [None] * (wanted - before)


def setup() -> None:
    """Start a cluster."""
    error.RemoteError = ipyparallel.tests.RemoteErrorWithTB
    _plain.clear()
    # A call that loses its engine is not run again.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        _clusters.append(LocalCluster(n_workers=0, threads_per_worker=1, processes=True))
    add_engines(1)


def teardown() -> None:
    """End the cluster."""
    _clusters.pop().close()


ipyparallel.Client = Client
for replacement in (add_engines, setup, teardown):
    setattr(ipyparallel.tests, replacement.__name__, replacement)


def pytest_addoption(parser: pytest.Parser) -> None:
    counted.add_option(parser)


@pytest.hookimpl(trylast=True)  # when pytest-xdist has prepared `workeroutput`
def pytest_configure(config: pytest.Config) -> None:
    counters = {"casts": _casts, "tasks": _tasks}
    config.pluginmanager.register(counted.Counts(config, counters), "treadle-counts")
