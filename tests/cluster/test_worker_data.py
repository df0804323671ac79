"""``Worker.data``, into which users put values of their own."""

from __future__ import annotations

from collections.abc import MutableMapping

import pytest
from distributed import get_worker

from client_support import SOON, distributed_fails, inc


@pytest.fixture
def client(client):
    yield client

    def clean(dask_worker):
        for key in [key for key in dask_worker.data if str(key).startswith("mine")]:
            del dask_worker.data[key]

    client.run(clean)


def put(key, value):
    get_worker().data[key] = value


def test_what_is_put_there_stays_until_it_is_deleted(client):
    address = next(iter(client.scheduler_info()["workers"]))
    big = bytes(1 << 20)
    for key, value in (("mine", 1), (("mine", 2), big)):
        client.submit(put, key, value, workers=address, pure=False).result(timeout=SOON)

    def read(dask_worker):
        assert isinstance(dask_worker.data, MutableMapping)
        assert dask_worker.state.data is dask_worker.data
        data = dask_worker.data
        found = [key for key in data if str(key).startswith("mine") or key[0] == "mine"]
        assert set(found) <= set(dask_worker.keys())
        assert all(key in data for key in found)
        return found, [len(bytes(data[key])) for key in found], len(data)

    assert client.run(read, workers=[address])[address] == (["mine", ("mine", 2)], [1, 1 << 20], 2)
    others = [other for other in client.scheduler_info()["workers"] if other != address]
    assert client.run(read, workers=others) == {other: ([], [], 0) for other in others}
    # The scheduler knows nothing of it.
    assert client.has_what([address])[address] == ()

    def change(dask_worker):
        data = dask_worker.data
        data["mine"] = 2
        data.update({"mine-3": 3}, mine4=4)
        assert data.setdefault("mine", 5) == 2
        assert data.pop("mine") == 2
        assert data.pop("mine", None) is None
        with pytest.raises(KeyError):
            del data["mine"]
        del data["mine", 2]
        assert sorted(data) == ["mine-3", "mine4"]
        assert data.popitem() == ("mine4", 4)
        data.clear()
        return dict(data)

    assert client.run(change, workers=[address]) == {address: {}}


@distributed_fails("it drops a value that its scheduler counts on")
@pytest.mark.parametrize("value", [1, bytes(1 << 20)], ids=["small", "large"])
def test_the_value_of_a_task_can_only_be_read(client, value):
    future = client.submit(lambda: value, key="of-a-task")
    future.result(timeout=SOON)
    ((address,),) = client.who_has(future).values()

    def change(dask_worker):
        data = dask_worker.data
        assert data["of-a-task"] == value
        for refused in (
            lambda: data.__setitem__("of-a-task", 3),
            lambda: data.__delitem__("of-a-task"),
            lambda: data.pop("of-a-task"),
            lambda: data.update({"of-a-task": 4}),
            data.clear,
        ):
            with pytest.raises(RuntimeError, match=r"Worker\.data\['of-a-task'\] cannot be "):
                refused()

    client.run(change, workers=[address])
    assert client.submit(lambda x: x, future, pure=False).result(timeout=SOON) == value


def test_a_task_reads_its_own_inputs_all_the_same(client):
    def hide(dask_worker):
        dask_worker.data["mine-x"] = "hidden"

    client.run(hide)
    x = client.submit(inc, 1, key="mine-x")
    assert client.submit(inc, x).result(timeout=SOON) == 3
