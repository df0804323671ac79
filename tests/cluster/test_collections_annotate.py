"""`dask.annotate`, and progress bars."""

from __future__ import annotations

import dask
import dask.array as da
import distributed
import pytest
from dask import delayed
from distributed import get_worker, progress, wait

from client_support import IS_DASK, SOON, attempts, fail, fail_times, inc, note, pass_gate


def here(*_):
    return get_worker().address


# No optimisation: Dask's own fusion drops annotations.


def test_workers_of_a_submitted_call(client, workers):
    for address in workers:
        with dask.annotate(workers=[address]):
            future = client.submit(here, pure=False)
        assert future.result(timeout=SOON) == address


def test_workers_of_a_delayed(client, workers):
    for address in workers:
        with dask.annotate(workers=[address]):
            x = delayed(here, pure=False)()
        assert client.compute(x, optimize_graph=False).result(timeout=SOON) == address


def test_each_part_of_a_graph_has_its_own_workers(client, workers):
    with dask.annotate(workers=workers[:1]):
        x = delayed(here, pure=False)()
    with dask.annotate(workers=workers[1:]):
        y = delayed(here, pure=False)(x)
    found = client.gather(client.compute([x, y], optimize_graph=False))
    assert found == [workers[0], workers[1]]


def test_workers_of_an_array(client, workers):
    with dask.annotate(workers=workers[:1]):
        x = da.ones(10, chunks=5)
    with dask.config.set(optimization__fuse__active=False):
        y = client.persist(x, optimize_graph=False)
    wait(y, timeout=SOON)
    assert {a for where in client.who_has(y).values() for a in where} == {workers[0]}


def test_the_part_of_a_graph_counts_more_than_the_computation(client, workers):
    with dask.annotate(workers=workers[:1]):
        x = delayed(here, pure=False)()
    future = client.compute(x, optimize_graph=False, workers=workers[1:])
    assert future.result(timeout=SOON) == workers[0]


def test_workers_around_a_computation(client, workers):
    with dask.annotate(workers=workers[1:]):
        assert delayed(here, pure=False)().compute() == workers[1]


def test_other_workers_may_be_allowed(client):
    with dask.annotate(workers=["tcp://127.0.0.1:9"], allow_other_workers=True):
        future = client.submit(inc, 1)
        x = delayed(inc)(2)
    assert future.result(timeout=SOON) == 2
    assert client.compute(x, optimize_graph=False).result(timeout=SOON) == 3


def test_retries_of_a_submitted_call(client, tmp_path):
    with dask.annotate(retries=2):
        future = client.submit(fail_times, 2, str(tmp_path), 5)
    assert future.result(timeout=SOON) == 5
    assert attempts(tmp_path) == 3


def test_retries_of_a_delayed(client, tmp_path):
    with dask.annotate(retries=1):
        x = delayed(fail_times)(1, str(tmp_path), 5)
    assert client.compute(x, optimize_graph=False).result(timeout=SOON) == 5


def test_retries_of_one_part_only(client, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with dask.annotate(retries=1):
        x = delayed(fail_times)(1, str(tmp_path), 5)
    y = delayed(fail_times)(1, str(other), 5)
    good, bad = client.compute([x, y], optimize_graph=False)
    assert good.result(timeout=SOON) == 5
    assert isinstance(bad.exception(timeout=SOON), RuntimeError)


def test_priorities_of_submitted_calls(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    futures = []
    for priority in (0, 5, -5):
        with dask.annotate(priority=priority):
            futures.append(client.submit(note, gate, priority, blocker, workers=workers[:1]))
    eventually(lambda: len(client.who_has()) == 4)
    gate.open()
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["blocker", "5", "0", "-5"]


def test_priorities_within_a_graph(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    parts = []
    for priority in (-5, 0, 5):
        with dask.annotate(priority=priority):
            parts.append(delayed(note)(gate, priority, blocker))
    futures = client.compute(parts, optimize_graph=False, workers=workers[:1])
    eventually(lambda: len(client.who_has()) >= 4)
    gate.open()
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["blocker", "5", "0", "-5"]


def test_resources(new_client, gate, eventually):
    client = new_client(workers=1, threads_per_worker=2, resources={"GPU": 1})
    with dask.annotate(resources={"GPU": 1}):
        parts = [delayed(pass_gate)(gate, i, name=i) for i in range(2)]
    futures = client.compute(parts, optimize_graph=False)
    eventually(gate.arrived)
    assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert len(gate.arrivals()) == 1
    gate.open()
    assert client.gather(futures) == [0, 1]


def test_a_resource_that_nobody_has(client):
    with dask.annotate(resources={"UNICORN": 1}):
        future = client.submit(inc, 1, key="annotated-unicorn")
    with pytest.raises(distributed.TimeoutError):
        future.result(timeout=0.2)
    assert future.status == "pending"


def test_arguments_win_over_annotations(client, workers):
    with dask.annotate(workers=workers[:1]):
        future = client.submit(here, workers=workers[1:], pure=False)
    assert future.result(timeout=SOON) == workers[1]


def test_annotations_of_map(client, workers):
    with dask.annotate(workers=workers[1:]):
        futures = client.map(here, range(4), pure=False)
    assert set(client.gather(futures)) == {workers[1]}


def test_an_annotation_may_be_a_function_of_the_key(client, workers):
    place = dict(zip("abcd", [workers[0], workers[0], workers[1], workers[0]], strict=True))
    of = {f"{letter}-function-of-key": address for letter, address in place.items()}
    with dask.annotate(workers=lambda key: [of[key]], retries=lambda _: 2, priority=lambda _: 5):
        future = client.submit(here, key="c-function-of-key")
        futures = client.map(here, range(4), key=list(of))
        again = client.map(here, range(0), key=[])
    assert future.result(timeout=SOON) == workers[1]
    assert client.gather(futures) == list(of.values())
    assert again == []


@pytest.mark.skipif(IS_DASK, reason="distributed cancels all calls of the map")
def test_calls_with_options_of_their_own_may_read_futures_that_were_cancelled(client, workers):
    future = client.submit(inc, 1, pure=False)
    wait(future)
    future.cancel()
    keys = [f"{number}-reads-cancelled" for number in range(2)]
    with dask.annotate(workers=lambda key: [workers[int(key[0])]]):
        places = client.map(here, [0, future], key=keys)
    assert places[0].result(timeout=SOON) == workers[0]
    assert [place.key for place in places] == keys
    wait(places[1], timeout=SOON)


def test_unknown_annotations_do_no_harm(client):
    with dask.annotate(my_own_note={"a": 1}):
        future = client.submit(inc, 1)
        x = delayed(inc)(2)
    assert future.result(timeout=SOON) == 2
    assert client.compute(x, optimize_graph=False).result(timeout=SOON) == 3


def test_annotations_end_with_their_block(client, workers):
    with dask.annotate(workers=["tcp://127.0.0.1:9"]):
        pass
    assert client.submit(inc, 1).result(timeout=SOON) == 2


# Progress bars in text mode, which block until everything is done.


def test_a_progress_bar_ends_at_100_percent(client, capsys):
    futures = client.map(inc, range(5))
    progress(futures, notebook=False)
    assert all(f.done() for f in futures)
    output = capsys.readouterr().out
    assert "100% Completed" in output
    assert "[####" in output


def test_a_progress_bar_waits(client, gate, capsys, eventually):
    import threading

    future = client.submit(pass_gate, gate, 5)
    eventually(gate.arrived)
    timer = threading.Timer(0.3, gate.open)
    timer.start()
    progress(future, notebook=False)
    assert future.done()
    timer.join()
    assert "100% Completed" in capsys.readouterr().out


def test_a_progress_bar_ends_at_an_error(client, capsys):
    futures = [client.submit(inc, 1), client.submit(fail)]
    progress(futures, notebook=False)
    assert "Completed" in capsys.readouterr().out


def test_a_progress_bar_of_a_collection(client, capsys):
    x = client.persist(da.ones((20, 20), chunks=5))
    progress(x, notebook=False)
    assert "100% Completed" in capsys.readouterr().out
    assert x.sum().compute() == 400


def test_the_grouping_of_a_progress_bar_is_checked(client):
    with pytest.raises(ValueError, match="group_by"):
        progress(client.submit(inc, 1), notebook=False, group_by="nonsense")
