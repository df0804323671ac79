"""What is shown of shuffles that run: their bytes in progress bars, and their names in traces."""

from __future__ import annotations

import io
import threading

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.utils import format_bytes

import treadle
from client_support import AGAINST, SOON, Gate, pass_gate
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST == "distributed", reason="it is Treadle's own")

INPUTS = 6


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        yield


class part_of:
    """An input for each number, all of one size. The last one waits at a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __call__(self, number: int) -> pd.DataFrame:
        frame = pd.DataFrame({"key": np.arange(2000), "value": float(number)})
        return pass_gate(self.gate, frame) if number == INPUTS - 1 else frame


def begin(client, gate):
    """A shuffle of which one input is missing."""
    meta = pd.DataFrame({"key": [0], "value": [0.0]})
    lazy = dd.from_map(part_of(gate), range(INPUTS), meta=meta).shuffle("key", npartitions=4)
    futures = client.compute(lazy.to_delayed())

    def others_have_ended():
        return [one.transferred for one in client.shuffles().running] == [INPUTS - 1]

    until(others_have_ended, "all inputs but one are transferred")
    return futures


def test_a_progress_bar_counts_bytes(client, gate: Gate):
    futures = begin(client, gate)
    [shuffle] = client.shuffles().running
    assert shuffle.expected_bytes * (INPUTS - 1) == shuffle.bytes * INPUTS > 0
    file = io.StringIO()
    options = {"notebook": False, "file": file}
    bar = threading.Thread(target=treadle.progress, args=(futures,), kwargs=options)
    bar.start()
    moved = f"{format_bytes(shuffle.bytes)} of {format_bytes(shuffle.expected_bytes)}"
    until(lambda: f"shuffle {shuffle.name[:8]}: {moved}" in file.getvalue(), "the bytes are shown")
    page = treadle.progress(futures, notebook=True)._repr_html_()
    assert moved in page
    gate.open()
    bar.join(SOON)
    assert not bar.is_alive()
    last = file.getvalue().rpartition("\r")[2]
    assert "100% Completed" in last
    assert "shuffle" not in last


def test_a_trace_names_shuffles(client, gate: Gate):
    futures = begin(client, gate)
    [name] = [one.name for one in client.shuffles().running]
    with treadle.trace() as trace:
        gate.open()
        client.gather(futures)
        del futures
        until(lambda: not client.shuffles().running, "it has ended")
        frame = dd.from_pandas(pd.DataFrame({"key": np.arange(900)}), 3, sort=False)
        frame.shuffle("key", npartitions=2).compute()
    events = [event for event in trace.events if event.get("cat") == "shuffle"]
    by_name: dict[str, set[str]] = {}
    for event in events:
        by_name.setdefault(event["args"]["shuffle"], set()).add(event["name"])
    # The first one had begun before the trace.
    other = by_name.keys() - {name}
    assert len(by_name) == 2, by_name
    assert by_name[name] == {"gather", "push", "read"}
    assert by_name[other.pop()] == {"gather", "push", "read"}
