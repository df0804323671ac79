"""The scheduler's Python side outlives what is run on it, and is replaced if it ends."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import distributed
import pytest

import treadle
from client_support import AGAINST, SOON, client_class, inc
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="distributed's scheduler ends"),
    pytest.mark.usefixtures("quiet"),
]


def fail_with(error: type[BaseException]) -> None:
    raise error("bye")


async def fail_later_with(error: type[BaseException]) -> None:
    await asyncio.sleep(0)
    raise error("bye")


def stop_the_loop(dask_scheduler) -> None:
    dask_scheduler.loop.stop()


def queues(client) -> bool:
    """Whether a queue works: an error says that there is no Python side."""
    try:
        queue = distributed.Queue("q", client=client)
        queue.put(1, timeout=SOON)
        return queue.get(timeout=SOON) == 1
    except OSError:
        return False


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_function_that_exits_is_told_and_the_sidecar_stays(client, error):
    variable = distributed.Variable("kept", client=client)
    variable.set(1)
    for function in (fail_with, fail_later_with):
        with pytest.raises(RuntimeError, match=f"raised {error.__name__}"):
            client.run_on_scheduler(function, error)
    assert variable.get(timeout=SOON) == 1
    assert queues(client)
    variable.delete()


def test_what_exits_in_the_background_leaves_the_sidecar_there(client):
    variable = distributed.Variable("kept", client=client)
    variable.set(1)
    client.run_on_scheduler(fail_later_with, SystemExit, wait=False)
    assert variable.get(timeout=SOON) == 1
    assert queues(client)
    variable.delete()


def test_a_local_cluster_replaces_a_sidecar_whose_loop_ends(fresh_client):
    before = fresh_client.cluster._scheduler.sidecar.scheduler
    # It ends before or after its answer.
    fresh_client.run_on_scheduler(stop_the_loop)
    until(lambda: fresh_client.cluster._scheduler.sidecar.scheduler is not before, "it is replaced")
    until(lambda: queues(fresh_client), "a queue works")
    assert fresh_client.submit(inc, 1).result(SOON) == 2


def test_clients_are_told_what_is_lost_with_a_sidecar_and_hear_of_topics_still(
    fresh_client, caplog, quiet
):
    seen = []
    fresh_client.subscribe_topic("news", lambda event: seen.append(event[1]))
    fresh_client.subscribe_topic("olds", lambda event: seen.append(event[1]))
    fresh_client.unsubscribe_topic("olds")
    lost = distributed.Variable("lost", client=fresh_client)
    lost.set(1)
    logging.disable(logging.NOTSET)
    fresh_client.run_on_scheduler(stop_the_loop)
    until(lambda: "queues, variables" in caplog.text, "it is told")
    until(lambda: queues(fresh_client), "a queue works")
    with pytest.raises(asyncio.TimeoutError):
        lost.get(timeout=0.1)
    fresh_client.log_event("olds", "bad")
    fresh_client.log_event("news", "good")
    until(lambda: seen == ["good"], "an event comes")


def test_a_scheduler_replaces_a_sidecar_whose_loop_ends(start, secret):
    scheduler = start("scheduler", "127.0.0.1:0")
    with client_class()(scheduler.address, secret=secret, set_as_default=False) as client:
        with pytest.raises(RuntimeError, match="raised SystemExit"):
            client.run_on_scheduler(sys.exit, 3)
        client.run_on_scheduler(stop_the_loop)
        until(lambda: queues(client), "a queue works")
    until(lambda: "starting another" in scheduler.output, "it says so")
    assert "the event loop ended" in scheduler.output


def test_no_other_is_started_for_a_scheduler_that_has_ended(caplog):
    before = set(threading.enumerate())
    with treadle.LocalCluster(n_workers=0) as cluster:
        (watching,) = [
            thread
            for thread in set(threading.enumerate()) - before
            if thread.name == "treadle-watch-sidecar"
        ]
        treadle.Client(cluster.scheduler_address, set_as_default=False).shutdown()
        until(lambda: not watching.is_alive())
        assert "cannot be started" not in caplog.text
