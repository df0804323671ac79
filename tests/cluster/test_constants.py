"""Large constants of graphs, which no task computes: clients keep them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import dask
import distributed
import numpy as np
import pytest

from client_support import AGAINST, SOON, Gate, pass_gate
from process_support import HERE, send
from waiting import until

LARGE = 2_500_000  # numbers: 20 MB

treadle_only = pytest.mark.skipif(
    AGAINST != "treadle", reason="distributed's scheduler has every constant"
)


def total(array: np.ndarray, _after: object = None) -> float:
    return float(array.sum())


def shifted(array: np.ndarray) -> np.ndarray:
    return array + 1


def holders(client: distributed.Client) -> list[str]:
    """The workers that have a constant, once one has."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [
            worker
            for worker, keys in client.has_what().items()
            if any(str(key).startswith("treadle-constant-") for key in keys)
        ]
        return bool(found)

    until(look, "a worker has the constant")
    return found


def kill(client: distributed.Client, worker: str) -> None:
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)
    until(lambda: worker not in client.scheduler_info()["workers"], "the worker is gone")


def computed(client: distributed.Client, constant: np.ndarray) -> distributed.Future:
    """What was computed from a constant."""
    [future] = distributed.futures_of(client.persist(dask.delayed(shifted)(constant)))
    distributed.wait(future, timeout=SOON)
    return future


def kill_holders(client: distributed.Client, future: distributed.Future) -> None:
    """Kill who has what was computed, and who has the constant."""
    for worker in {*client.who_has([future])[future.key], *holders(client)}:
        kill(client, worker)


def test_a_constant_outlives_the_workers_that_hold_it(
    fresh_client: distributed.Client, gate: Gate
) -> None:
    client = fresh_client
    constant = np.arange(float(LARGE))
    held = dask.delayed(pass_gate)(gate)
    result = client.compute(dask.delayed(total)(constant, held))
    if AGAINST == "treadle":
        # It is at one worker, whichever that is; each time that it dies, the client brings it again.
        for _ in range(2):
            [holder] = holders(client)
            assert sum(client.nbytes(summary=False).values()) == pytest.approx(8 * LARGE, rel=0.01)
            kill(client, holder)
    else:
        kill(client, next(iter(client.scheduler_info()["workers"])))
    gate.open()
    assert result.result(timeout=2 * SOON) == constant.sum()


@treadle_only
def test_a_constant_comes_again_for_what_was_computed_from_it(
    fresh_client: distributed.Client,
) -> None:
    client = fresh_client
    constant = np.arange(float(LARGE))
    future = computed(client, constant)
    # The constant itself nobody wants any more.
    kill_holders(client, future)
    np.testing.assert_array_equal(future.result(timeout=2 * SOON), constant + 1)
    assert client._connection.kept() == (1, pytest.approx(8 * LARGE, rel=0.01))
    del future
    until(lambda: client._connection.kept() == (0, 0), "it is not kept for nothing")
    until(lambda: not any(client.has_what().values()), "nor by workers")


@treadle_only
def test_a_constant_that_was_written_to_is_not_brought_again(
    fresh_client: distributed.Client,
) -> None:
    client = fresh_client
    constant = np.arange(float(LARGE))
    future = computed(client, constant)
    constant[7] = 0
    kill_holders(client, future)
    with pytest.raises(distributed.client.FutureCancelledError, match="treadle-constant-"):
        future.result(timeout=2 * SOON)
    assert client._connection.kept() == (0, 0)


OTHER = """
    import sys
    import distributed
    import numpy as np
    from client_support import Gate, pass_gate
    from test_constants import LARGE, total
    from treadle import Client

    if __name__ == "__main__":
        client = Client(sys.argv[1])
        result = client.submit(total, np.arange(float(LARGE)), key="other")
        result.result()
        print("ready", flush=True)
        sys.stdin.read()
"""


@treadle_only
def test_whoever_else_has_a_constant_brings_it_when_one_client_has_died(
    start, join, gate: Gate
) -> None:
    scheduler = start("scheduler", "--port", "0")
    assert start("worker", scheduler.address, "--nthreads", "2").address
    client = join(scheduler)
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    victim = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OTHER), scheduler.address],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        constant = np.arange(float(LARGE))
        held = client.submit(pass_gate, gate, key="held")
        result = client.submit(total, constant, held, key="mine")
        until(gate.arrived, "the task runs")
        [holder] = holders(client)
        # It stands still, so it cannot answer; then it dies while it is asked.
        send(victim.pid, signal.SIGSTOP)
        kill(client, holder)
        victim.kill()
    finally:
        victim.kill()
        victim.communicate()
    start("worker", scheduler.address, "--nthreads", "2")
    gate.open()
    assert result.result(timeout=2 * SOON) == constant.sum()
