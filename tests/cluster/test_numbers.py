"""Numbers that nothing can be done with are refused at once, by the name of their option."""

from __future__ import annotations

import math

import dask
import pytest

import treadle
from client_support import AGAINST, SOON, inc
from treadle.common._priorities import rank, ranked

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="distributed takes what it is given")

REFUSED = [
    ("retries", -1),
    ("retries", 10**30),
    ("retries", math.inf),
    ("priority", 10**30),
    ("priority", -(10**30)),
    ("priority", math.nan),
    *[("resources", {"GPU": amount}) for amount in (-1, math.nan, math.inf, "many", 10**400)],
]


@pytest.mark.parametrize(("option", "value"), REFUSED)
def test_numbers_of_tasks(client, option, value):
    with pytest.raises(ValueError, match=f"^{option}="):
        client.submit(inc, 1, **{option: value})
    with pytest.raises(ValueError, match=f"^{option}="):
        client.map(inc, [1, 2], **{option: value})
    with pytest.raises(ValueError, match=f"^{option}="):
        client.compute(dask.delayed(inc)(1), **{option: value})
    assert client.submit(inc, 1, pure=False).result(SOON) == 2


@pytest.mark.filterwarnings("ignore:treadle. priority=:UserWarning")
@pytest.mark.parametrize(("option", "value"), [("retries", 2**31 - 2.5), ("priority", 1.8e9 + 0.5)])
def test_large_numbers_of_tasks_that_fit(client, option, value):
    assert client.submit(inc, 1, pure=False, **{option: value}).result(SOON) == 2


def test_priorities_keep_their_order_and_can_be_read():
    rising = [-1.8e9, -300, -256, -255.5, -1.9, -1.2, -1, -0.5, -1e-9]
    rising = [*rising, 0, *(-number for number in reversed(rising))]
    ranks = [rank(number) for number in rising]
    assert ranks == sorted(set(ranks))
    assert [ranked(one) for one in ranks] == pytest.approx(rising, abs=1e-6)


def test_a_fraction_that_does_not_count_is_named():
    with pytest.warns(UserWarning, match=r"priority=300\.5 counts as 300"):
        assert rank(300.5) == rank(300)


@pytest.mark.parametrize("amount", ["b", -1, math.nan, math.inf])
def test_resources_of_workers(amount):
    with pytest.raises(ValueError, match=r"^resources=\{'a': "):
        treadle.LocalCluster(1, resources={"a": amount})


@pytest.mark.parametrize("allowed", [-7, "rubbish", 10**30])
def test_allowed_failures(allowed):
    name = "distributed.scheduler.allowed-failures"
    with dask.config.set({name: allowed}), pytest.raises(ValueError, match=f"^{name}="):
        treadle.LocalCluster(0)


@pytest.mark.parametrize("get", [treadle.get, treadle.processes.get])
def test_num_workers(get):
    with pytest.raises(ValueError, match=r"^num_workers=-1"):
        get({"x": (inc, 1)}, "x", num_workers=-1)
    with dask.config.set(num_workers=-1), pytest.raises(ValueError, match=r"^num_workers=-1"):
        get({"x": (inc, 1)}, "x")


OUT_OF_RANGE = [-1, 2**63, 2**64, 1.5, math.nan, "x"]


@pytest.mark.parametrize("given", OUT_OF_RANGE)
@pytest.mark.parametrize("name", ["workers", "n_workers", "threads_per_worker"])
def test_counts_of_clusters(name, given):
    with pytest.raises((TypeError, ValueError), match=f"^{name}=.*: give an integer from 0 to"):
        treadle.LocalCluster(processes=False, dashboard_address=None, **{name: given})


@pytest.mark.parametrize("given", OUT_OF_RANGE)
def test_counts_of_calls(client, given):
    said = ": give an integer from 0 to"
    with pytest.raises((TypeError, ValueError), match=f"^n=.*{said}"):
        client.cluster.scale(given)
    with pytest.raises((TypeError, ValueError), match=f"^broadcast=.*{said}"):
        client.scatter(1, broadcast=given)
    with pytest.raises((TypeError, ValueError), match=f"^batch_size=.*{said}"):
        client.map(inc, [1, 2], batch_size=given)


def test_batches_larger_than_all_calls_are_one(client):
    for size in (2**40, 2, 1, 0, None):
        futures = client.map(inc, [1, 2, 3], batch_size=size)
        assert client.gather(futures) == [2, 3, 4]
    assert client.map(inc, [], batch_size=4) == []
