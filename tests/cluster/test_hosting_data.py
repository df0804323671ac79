"""Values of Dask's workers that become Treadle's, and back, beside each other in one cluster."""

from __future__ import annotations

import os
import secrets
import signal

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import treadle
from client_support import AGAINST, SOON
from process_support import until
from treadle.hosting._value_exchange import take

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


def places(client, futures):
    """Return where arrays are: in which process, at which address."""
    found = client.run(addresses, [future.key for future in futures])
    return {key: place for part in found.values() for key, place in part.items()}


def addresses(keys, dask_worker):
    held = {key: dask_worker.data[key] for key in keys if key in dask_worker.data}
    return {key: (os.getpid(), a.__array_interface__["data"][0]) for key, a in held.items()}


def fail():
    raise ZeroDivisionError("there is nothing")


def wait_for(event):
    distributed.Event(event).wait(SOON)


def test_values_pass_without_a_copy_both_ways(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        theirs = there.map(np.full, [100_000] * 4, range(4))
        distributed.wait(theirs)
        before = places(there, theirs)
        ours = here.scatter(theirs)
        assert [future.key for future in ours] == [future.key for future in theirs]
        assert places(here, ours) == before
        # What Dask drops stays Treadle's.
        there.cancel(theirs)
        del theirs
        assert [int(array[0]) for array in here.gather(ours)] == [0, 1, 2, 3]

        made = here.map(np.full, [100_000] * 4, range(4, 8))
        distributed.wait(made)
        before = places(here, made)
        small, pending = here.submit(sum, [1, 2]), here.submit(sum, [], workers=["nobody"])
        sent = here.scatter(np.full(100_000, 8))
        distributed.wait(small)
        kept = here.detach(keep=True)
    assert pending.key not in kept, "what is not finished is not wanted"
    assert {future.key for future in (*ours, *made, small, sent)} == kept.keys()
    assert kept[sent.key].result()[0] == 8
    back = [kept[future.key] for future in made]
    assert all(future.client is there for future in back)
    assert places(there, back) == before
    assert [int(array[0]) for array in there.gather(back)] == [4, 5, 6, 7]
    assert kept[small.key].result() == 3


def once(gate):
    """Return at once the first time, and when the gate is open the second time."""
    if gate.arrived():
        gate.wait()
    gate.arrive()
    return np.arange(1000)


def states(dask_scheduler):
    return {key: task.state for key, task in dask_scheduler.tasks.items()}


def test_a_value_that_dask_computes_again_is_waited_for(dask_client, gate):
    there = dask_client()
    with treadle.attach(there) as here:
        theirs = there.submit(once, gate)
        distributed.wait(theirs)
        (holder,) = there.who_has([theirs])[theirs.key]
        os.kill(there.run(os.getpid)[holder], signal.SIGKILL)
        until(
            lambda: there.run_on_scheduler(states)[theirs.key] == "processing", "it runs once more"
        )
        taken = here.submit(take, theirs.key, [holder], there.scheduler.address)
        gate.open()
        assert taken.result().sum() == 499_500


def test_collections_both_ways(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        x = da.random.default_rng(0).random((400, 400), chunks=100)
        frame = pd.DataFrame({"key": np.arange(1000) % 7, "value": np.arange(1000)})
        theirs = there.persist([x, dd.from_pandas(frame, npartitions=4)])
        distributed.wait(theirs)
        array, table = (treadle.adopt(one) for one in theirs)
        assert {future.client for future in distributed.futures_of([array, table])} == {here}
        expected = x.sum().compute(scheduler="sync")
        assert array.sum().compute() == pytest.approx(expected)
        sums = table.groupby("key").value.sum()
        assert sums.compute().to_dict() == frame.groupby("key").value.sum().to_dict()
        assert there.compute(theirs[0].sum()).result() == pytest.approx(expected), "side by side"

        computed = (array + 1).persist()
        distributed.wait(computed)
        back = treadle.give_back(computed)
        with pytest.raises(ValueError, match=r"not persisted.*client\.persist\(collection\)"):
            treadle.adopt(x)
        with pytest.raises(TypeError, match="a Dask collection is needed, not list"):
            treadle.adopt([])
    assert there.compute(back.sum()).result() == pytest.approx(expected + x.size)


def test_what_has_no_value_is_refused_by_name(dask_client):
    there = dask_client(n_workers=1, threads_per_worker=2)
    with treadle.attach(there) as here:
        failed, running = there.submit(fail), there.submit(wait_for, "go", pure=False)
        distributed.wait(failed)
        with pytest.raises(RuntimeError, match=r"'fail-.*failed on Dask: ZeroDiv") as caught:
            here.scatter(failed)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(ValueError, match=r"'wait_for-.*still runs on Dask: wait for it"):
            here.scatter([running])
        distributed.Event("go", client=there).set()
        distributed.wait(running)
        there.cancel(running)
        with pytest.raises(RuntimeError, match=r"'wait_for-.*it is cancelled on Dask"):
            here.scatter(running)
        # Nobody can compute it again.
        value = there.scatter(np.ones(10))
        there.run(forget, value.key)
        asking = there.scheduler.who_has
        until(lambda: not there.sync(asking, keys=[value.key]).get(value.key), "nobody has it")
        with pytest.raises(RuntimeError, match=r"'ndarray-.*(is lost|it is (lost|cancelled))"):
            here.scatter(value)
        ours = here.submit(fail, pure=False)
        distributed.wait(ours)
        assert here.submit(sum, [1, 2]).result() == 3
    with treadle.Client(threads_per_worker=1, set_as_default=False) as alone:
        with pytest.raises(TypeError, match=r"only a client that treadle\.attach returned"):
            alone.scatter(there.submit(sum, [1, 2]))
        with pytest.raises(RuntimeError, match=r"not made by treadle\.attach"):
            treadle.adopt(da.ones(3), client=alone)


def test_the_same_key_with_another_value_is_refused_by_name(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        ours, theirs = here.submit(str, "ours", key="x"), there.submit(str, "theirs", key="x")
        distributed.wait([ours, theirs])
        with pytest.raises(ValueError, match="Treadle's client has a future of 'x'"):
            here.scatter(theirs)
        with pytest.raises(ValueError, match="Dask has a task of 'x'"):
            here.detach(keep=True)
        ours.cancel()
        ours = here.scatter(theirs)
        assert ours.result() == "theirs"
        # It was adopted, but Dask makes another one. Of a key that is cancelled, distributed's client may hear
        # late, and cancel the next future.
        theirs.release()
        until(lambda: "x" not in there.run_on_scheduler(states), "it is forgotten")
        theirs = there.submit(str, "others", key="x")
        distributed.wait(theirs)
        with pytest.raises(ValueError, match="Treadle's client has a future of 'x'"):
            here.scatter(theirs)
        with pytest.raises(ValueError, match="Dask has a task of 'x'"):
            here.detach(keep=True)
        theirs.release()
        until(lambda: "x" not in there.run_on_scheduler(states), "it is forgotten")
        assert here.detach(keep=True)["x"].result() == "theirs"


def take_no_values():
    """A worker of Dask has no room for values that are given to it."""
    from treadle.hosting import _value_exchange

    async def update(*_args):
        raise MemoryError("no room here")

    _value_exchange._update = update


def strings(dask_worker):
    return [key for key, value in dask_worker.data.items() if isinstance(value, bytes)]


def test_values_of_which_some_cannot_be_given_back_are_left_nowhere(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        _, second = workers = list(here.ncores())
        values = [
            here.submit(bytes, 10_000, key=key, workers=[worker])
            for key, worker in zip(("left-a", "left-b"), workers, strict=True)
        ]
        distributed.wait(values)
        name = here.scheduler_info(n_workers=-1)["workers"][second]["name"]
        info = there.scheduler_info(n_workers=-1)["workers"]
        (full,) = [one for one, worker in info.items() if str(worker["name"]) == str(name)]
        there.run(take_no_values, workers=[full])
        with pytest.raises(MemoryError, match="no room here"):
            here.detach(keep=True)
        until(lambda: not any(there.run(strings).values()), "nothing is left at Dask's workers")
        assert not there.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        # What Treadle had is there still.
        assert [len(value) for value in here.gather(values)] == [10_000, 10_000]


def test_values_pass_again_and_again(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        there.publish_dataset(there.persist(da.ones(4, chunks=2)), name="ones")
        arrays = []
        for _ in range(2):
            # Each time, Dask's client has other futures of the same tasks.
            theirs = there.get_dataset("ones")
            distributed.wait(theirs)
            arrays.append(treadle.adopt(theirs))
            del theirs
        made = (arrays[0] + 1).persist()
        distributed.wait(made)
        for _ in range(2):
            assert there.compute(treadle.give_back(arrays[1]).sum()).result() == 4
            back = treadle.give_back(made)
            assert there.compute(back.sum()).result() == 8
        assert treadle.adopt(back).sum().compute() == 8
        assert len(here.detach(keep=True)) == 4


def forget(key, dask_worker):
    from distributed.worker_state_machine import RemoveReplicasEvent

    dask_worker.handle_stimulus(RemoveReplicasEvent(keys=[key], stimulus_id="test"))


def test_a_value_that_moved_is_found(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        theirs = there.map(np.full, [1000] * 8, range(8))
        distributed.wait(theirs)
        names = [worker["name"] for worker in there.scheduler_info()["workers"].values()]
        there.retire_workers(names=names[:1])
        until(lambda: len(here.ncores()) == 1, "it is gone")
        assert [int(array[0]) for array in here.gather(here.scatter(theirs))] == list(range(8))


@pytest.mark.parametrize("tls", [False, True])
def test_workers_in_processes_of_their_own(dask_client, tls):
    security = distributed.Security.temporary() if tls else None
    there = dask_client(**({"security": security, "protocol": "tls://"} if tls else {}))
    with treadle.attach(there, processes=True) as here:
        ours, theirs = (set(client.run(os.getpid).values()) for client in (here, there))
        assert len(ours) == 2
        assert not ours & theirs
        values = there.map(np.full, [1000] * 4, range(4))
        distributed.wait(values)
        adopted = here.scatter(values)
        assert [int(array[0]) for array in here.gather(adopted)] == list(range(4))
        made = here.submit(np.full, 1000, 4)
        distributed.wait(made)
        kept = here.detach(keep=True)
    assert int(kept[made.key].result()[0]) == 4
    until(lambda: not any(map(is_there, ours)), "their processes have ended")


def test_no_secret_is_another_one_in_a_file(dask_client, monkeypatch):
    def ends_with_white_space(count):
        return b"\t" * count

    # What a file with a secret ends with is not read.
    monkeypatch.setattr(secrets, "token_bytes", ends_with_white_space)
    with treadle.attach(dask_client(n_workers=1), processes=True) as here:
        assert here.submit(sum, [1, 2]).result() == 3


def is_there(pid):
    return os.path.exists(f"/proc/{pid}")
