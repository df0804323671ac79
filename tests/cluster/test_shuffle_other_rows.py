"""Shuffles whose inputs have other rows when they run again: what is returned is of one run."""

from __future__ import annotations

import os
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from client_support import AGAINST, SOON, Gate, pass_gate
from process_support import kill
from reliability_support import connected
from waiting import until

INPUTS, OUTPUTS = 6, 10

pytestmark = [
    pytest.mark.skipif(
        AGAINST != "treadle", reason="distributed's shuffles start again, as a whole"
    ),
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        yield


@pytest.fixture
def client(new_client):
    return new_client(workers=3, threads_per_worker=2, worker_timeout=6)


class Input:
    """Rows that say which run of the input they are of."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def __call__(self, number: int) -> pd.DataFrame:
        with (self.runs / str(number)).open("a") as file:
            file.write("x")
            run = file.tell()
        keys = np.arange(600)
        return pd.DataFrame({"key": keys, "input": number, "run": run})


def shuffled(runs):
    meta = pd.DataFrame({"key": [0], "input": [0], "run": [0]}).iloc[:0]
    frame = dd.from_map(Input(runs), range(INPUTS), meta=meta)
    return frame.shuffle("key", npartitions=OUTPUTS).to_delayed()


def runs_of(output):
    """By input, the runs that an output has rows of: a small value."""
    return {number: sorted(set(rows)) for number, rows in output.groupby("input")["run"]}


def check(found):
    """All outputs have rows of the same run of each input."""
    assert all(len(runs) == 1 for one in found for runs in one.values()), found
    assert all(one == found[0] for one in found), found
    assert sorted(found[0]) == list(range(INPUTS))


def wait_here(output, gate):
    return pass_gate(gate, output, str(os.getpid()))


def test_small_results_are_of_one_run(client, tmp_path):
    runs, gates = tmp_path / "runs", tmp_path / "gate"
    runs.mkdir()
    gates.mkdir()
    gate = Gate(gates)
    outputs = shuffled(runs)
    early = [dask.delayed(runs_of)(output) for output in outputs[:3]]
    late = [dask.delayed(runs_of)(dask.delayed(wait_here)(output, gate)) for output in outputs[3:]]
    # What is computed from a small result is of the same run, too.
    total = dask.delayed(dict)(first=early[0], second=early[1])
    futures = client.compute([*early, *late, total])
    try:
        until(lambda: gate.arrived(3), "some outputs wait")
        until(lambda: all(future.done() for future in [*futures[:3], futures[-1]]), "some are read")
        before = client.gather(futures[:3])
        kill(int(gate.arrivals()[0]))
    finally:
        gate.open()
    *found, total = client.gather(futures)
    check(found)
    assert total == {"first": found[0], "second": found[1]}
    # The runs are others: otherwise this tests nothing.
    assert before[0] != found[0]


def test_a_gather_has_values_of_one_run(client, tmp_path):
    futures = client.compute(shuffled(tmp_path))
    until(lambda: all(future.done() for future in futures), "all are read")
    fetch = client._fetch_now
    first = client.gather(futures)

    def fetch_some(keys, timeout=None):
        """A worker is lost when some of the values have come."""
        client._fetch_now = fetch
        found, failed = fetch(keys[:5], timeout)
        kill(next(iter(connected(client).values())))
        until(lambda: any(not future.done() for future in futures), "values are lost")
        others, missing = fetch(keys[5:], timeout)
        return {**found, **others}, {**failed, **missing}

    client._fetch_now = fetch_some
    found = client.gather(futures)
    check([runs_of(output) for output in found])
    assert runs_of(found[0]) != runs_of(first[0])
