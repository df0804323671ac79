"""Tasks that are run again in the client, to find out what is wrong with them."""

from __future__ import annotations

import os

import dask.array as da
import numpy as np
import pytest
from dask import delayed
from distributed import wait

from client_support import SOON, add, distributed_fails, div, identity, inc
from treadle.client._distributed import FutureOfDistributed


def where(x: int) -> int:
    """Fail with the process in which this runs."""
    raise ValueError(f"{x} in {os.getpid()}")


def large(n: int) -> np.ndarray:
    return np.arange(n)


def test_a_task_that_failed_fails_here(client):
    future = client.submit(where, 5)
    wait([future], timeout=SOON)
    with pytest.raises(ValueError, match=f"5 in {os.getpid()}"):
        client.recreate_error_locally(future)


def test_the_task_to_blame_is_found(client):
    bad = client.submit(div, 1, 0, key="to-blame")
    after = client.submit(inc, bad)
    last = client.submit(add, after, 5)
    wait([last], timeout=SOON)
    with pytest.raises(ZeroDivisionError):
        client.recreate_error_locally(last)


@distributed_fails("it takes no dict for the inputs of a task")
def test_inputs_are_fetched(client):
    x = client.submit(identity, 3)
    y = client.submit(inc, x)
    bad = client.submit(where, y)
    wait([bad], timeout=SOON)
    del x, y
    with pytest.raises(ValueError, match=f"4 in {os.getpid()}"):
        client.recreate_error_locally(bad)


def test_keyword_arguments_and_containers(client):
    x = client.submit(identity, 0)
    bad = client.submit(lambda a, b=None: 1 / b["x"][0] + a, 1, b={"x": [x]})
    wait([bad], timeout=SOON)
    with pytest.raises(ZeroDivisionError):
        client.recreate_error_locally(bad)


@distributed_fails("it takes no dict for the inputs of a task")
def test_of_a_delayed_and_of_a_collection(client):
    x = delayed(div)(delayed(inc)(1), delayed(add)(1, -1))
    future = client.compute(delayed(inc)(x))
    wait([future], timeout=SOON)
    with pytest.raises(ZeroDivisionError):
        client.recreate_error_locally(future)

    def fail(block):
        raise KeyError(int(block.sum()))

    array = client.persist(da.ones(6, chunks=3).map_blocks(fail, dtype=float))
    wait(array, timeout=SOON)
    with pytest.raises(KeyError, match="3"):
        client.recreate_error_locally(array)


def test_of_one_that_did_not_fail(client):
    future = client.submit(inc, 1)
    wait([future], timeout=SOON)
    with pytest.raises(ValueError, match="No errored futures passed"):
        client.recreate_error_locally(future)


def test_a_task_that_went_well_is_run_again(client):
    x = client.submit(large, 1000)
    y = client.submit(np.add, x, 1)
    found = client.recreate_task_locally(y)
    assert isinstance(found, np.ndarray)
    assert found.sum() == np.arange(1000).sum() + 1000


def test_its_function_can_be_looked_into(client):
    """As ``pdb.runcall`` does: the caller runs it, with values that are here."""
    x = client.submit(large, 500)
    recipe, values = client.sync(client._get_components_from_future, client.submit(np.add, x, 1))
    assert all(not isinstance(value, FutureOfDistributed) for value in values.values())
    assert recipe(values).sum() == np.arange(500).sum() + 500
