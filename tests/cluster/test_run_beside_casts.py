"""Calls, plugins and tasks reach workers while a cast of a view is under way on all of them."""

from __future__ import annotations

import os
from typing import Any

import distributed
import pytest

from client_support import AGAINST, SOON, Gate, inc, pass_gate
from process_support import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="casts are Treadle's")


class Noting(distributed.WorkerPlugin):
    name = "noting"

    def setup(self, worker: Any) -> None:
        worker.was_noted = True

    def teardown(self, worker: Any) -> None:
        worker.was_noted = False


def noted(dask_worker: Any) -> Any:
    return getattr(dask_worker, "was_noted", None)


def test_runs_and_plugins_do_not_wait_for_casts(new_client, gate: Gate) -> None:
    client = new_client(workers=2, threads_per_worker=1)
    cast = client[:].apply_async(pass_gate, gate, "cast")
    until(lambda: gate.arrived(2), "the cast runs on both")
    processes = client.run(os.getpid)
    assert len(set(processes.values())) == 2
    client.register_plugin(Noting())
    assert set(client.run(noted).values()) == {True}
    client.unregister_worker_plugin("noting")
    assert set(client.run(noted).values()) == {False}
    assert client.run_on_scheduler(inc, 1) == 2
    assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert not cast.ready()
    gate.open()
    assert cast.get(SOON) == ["cast", "cast"]
