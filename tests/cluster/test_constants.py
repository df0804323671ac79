"""Large constants of graphs, which no task computes."""

from __future__ import annotations

import os
import signal
import time

import dask
import distributed
import numpy as np

from client_support import AGAINST, SOON, Gate, pass_gate


def total(array: np.ndarray, _after: object) -> float:
    return float(array.sum())


def test_a_constant_outlives_the_worker_that_holds_it(
    fresh_client: distributed.Client, gate: Gate
) -> None:
    client = fresh_client
    pids = client.run(os.getpid)
    constant = np.arange(200_000.0)
    held = dask.delayed(pass_gate)(gate)
    result = client.compute(dask.delayed(total)(constant, held))
    victim = next(iter(pids))
    if AGAINST == "treadle":
        # Distributed's scheduler has it, and any worker may be killed.
        until = time.monotonic() + SOON
        while len(holders := [worker for worker, keys in client.has_what().items() if keys]) < 2:
            assert time.monotonic() < until
        victim = holders[0]
    os.kill(pids[victim], signal.SIGKILL)
    gate.open()
    assert result.result() == constant.sum()
