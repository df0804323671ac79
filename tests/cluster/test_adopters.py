"""What users of comparable engines report missing: each is a sentence of issue 21, as a test.

Each runs on a cluster of Treadle's own, and attached to one of Dask's.
"""

from __future__ import annotations

import threading
import traceback

import distributed
import pytest

import treadle
from client_support import AGAINST, SOON, Shared, make_client
from waiting import until

# An attached one is started by distributed, with all that it imports.
pytestmark = pytest.mark.timeout(4 * SOON, method="signal")

here = threading.local()


@pytest.fixture(scope="module", params=["own", "attached"])
def shared_client(request, tmp_path_factory):
    if request.param == "own":
        shared = Shared(make_client)
        yield shared
        shared.drop()
        return
    if AGAINST != "treadle":
        pytest.skip("distributed is attached to nothing")
    directory = str(tmp_path_factory.mktemp("dask"))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(local_directory=directory, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as there,
    ):
        shared = Shared(lambda: treadle.attach(there))
        yield shared
        shared.drop()


def fail():
    try:
        raise KeyError("the first")
    except KeyError as error:
        raise ValueError("the second") from error


@pytest.mark.parametrize("collect", ["result", "exception", "gather"])
def test_an_exception_keeps_its_cause_and_traceback(client, collect):
    future = client.submit(fail)
    if collect == "exception":
        error = future.exception()
    else:
        with pytest.raises(ValueError, match="the second") as caught:
            future.result() if collect == "result" else client.gather([future])
        error = caught.value
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert "fail" in frames
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("the first",)
    assert "fail" in [frame.name for frame in traceback.extract_tb(future.traceback())]


def count():
    here.calls = getattr(here, "calls", 0) + 1
    return threading.get_ident(), here.calls


def test_the_state_of_a_worker_thread_lives_from_task_to_task(client, workers):
    calls = [client.submit(count, pure=False, workers=workers[:1]).result() for _ in range(5)]
    threads = {thread for thread, _ in calls}
    assert len(threads) == 1, "the worker has one thread"
    first = calls[0][1]
    assert [number for _, number in calls] == list(range(first, first + 5))


class Late:
    """An argument that is pickled only after the first task of its graph has arrived."""

    def __init__(self, gate):
        self.gate = gate

    def __reduce__(self):
        until(self.gate.arrived, "the first task runs before the last one is pickled")
        return str, ("late",)


def test_a_large_graph_begins_before_it_is_pickled_whole(client, gate):
    tasks = 100_000
    graph = {("at", 0): (gate.arrive,)}
    graph |= {("at", number): (abs, -number) for number in range(1, tasks - 1)}
    graph["at", tasks - 1] = (str, Late(gate))
    futures = client.get(graph, list(graph), sync=False)
    ends = [futures[0], futures[tasks // 2], futures[-1]]
    assert client.gather(ends) == [None, tasks // 2, "late"]


def test_many_values_are_gathered_at_once(client):
    pieces = 2000
    futures = client.map(bytes, [10_000] * pieces, pure=False)
    values = client.gather(futures)
    assert len(values) == pieces
    assert {len(value) for value in values} == {10_000}


@pytest.mark.skipif(AGAINST != "treadle", reason="it has no trace")
def test_what_a_client_remembers_of_its_calls_is_bounded():
    from treadle.tracing._cluster_trace import _MOST, Spans

    spans = Spans()
    for number in range(_MOST + 10):
        spans.add("submit", 0, number)
    assert len(spans.calls) == _MOST
    assert spans.dropped == 10, "and what is missing is counted"
    assert spans.calls[0][-1] == 10, "the oldest go"
