"""A call that raises ``SystemExit``, or something else that is no ``Exception``, is answered."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from client_support import AGAINST, SOON, addresses, inc
from reliability_support import processes
from waiting import until

pytestmark = [
    pytest.mark.skipif(
        AGAINST != "treadle", reason="distributed tells the end of a worker otherwise"
    ),
    pytest.mark.usefixtures("quiet"),
]


class Leaver:
    """An actor whose methods end their process."""

    def leave(self, error: type[BaseException]) -> None:
        raise error("bye")

    async def leave_in_the_loop(self, error: type[BaseException]) -> None:
        raise error("bye")


class LeavesWhenUnpickled:
    def __reduce__(self):
        return sys.exit, (3,)


class NoExceptionError(BaseException):
    pass


def fail_with(error: type[BaseException]) -> None:
    raise error("bye")


async def fail_later_with(error: type[BaseException]) -> None:
    await asyncio.sleep(0)
    raise error("bye")


def stop_the_loop(dask_worker) -> None:
    dask_worker.loop.stop()


def actor(client):
    return client.submit(Leaver, actor=True, pure=False).result(SOON)


LEAVING = {
    "run": lambda client: client.run(sys.exit, 3),
    "run-on-one": lambda client: client.run(sys.exit, 3, workers=addresses(client)[:1]),
    "run-interrupted": lambda client: client.run(fail_with, KeyboardInterrupt),
    "run-coroutine": lambda client: client.run(fail_later_with, SystemExit),
    "unpickled": lambda client: client.run(len, LeavesWhenUnpickled()),
    "method": lambda client: actor(client).leave(SystemExit).result(SOON),
    "coroutine-method": lambda client: actor(client).leave_in_the_loop(SystemExit).result(SOON),
}


def works(client) -> bool:
    """Whether calls, coroutines and tasks are answered."""
    ran = client.run(inc, 1)

    async def coroutine():
        return 5

    return (
        set(ran.values()) == {2}
        and client.submit(coroutine, pure=False).result(SOON) == 5
        and client.submit(inc, 1, pure=False).result(SOON) == 2
    )


@pytest.mark.parametrize("call", list(LEAVING))
def test_a_call_that_exits_ends_its_worker_and_is_told(new_client, call):
    client = new_client(workers=1)
    before = processes(client)["0"]
    with pytest.raises(OSError, match=r"."):
        LEAVING[call](client)
    until(lambda: processes(client)["0"] != before, "the worker is replaced")
    client.wait_for_workers(1, timeout=SOON)
    assert works(client)


def test_a_worker_whose_event_loop_ends_is_replaced(new_client):
    client = new_client(workers=1)
    before = processes(client)["0"]
    client.run(stop_the_loop)
    until(lambda: processes(client)["0"] != before, "the worker is replaced")
    client.wait_for_workers(1, timeout=SOON)
    assert works(client)


def test_what_exits_in_the_background_leaves_the_worker_there(client):
    before = client.run(os.getpid)
    client.run(fail_later_with, SystemExit, wait=False)
    assert works(client)
    assert client.run(os.getpid) == before


@pytest.mark.parametrize("error", [asyncio.CancelledError, NoExceptionError])
def test_what_is_no_exception_is_told(client, error):
    before = client.run(os.getpid)
    with pytest.raises(RuntimeError, match=f"raised .*{error.__name__}"):
        client.run(fail_with, error)
    with pytest.raises(RuntimeError, match=f"raised .*{error.__name__}"):
        actor(client).leave(error).result(SOON)
    assert client.run(os.getpid) == before


@pytest.mark.parametrize("call", list(LEAVING))
def test_a_call_that_exits_does_not_end_the_users_process(in_process_client, call):
    with pytest.raises(RuntimeError, match=r"raised (SystemExit|KeyboardInterrupt)"):
        LEAVING[call](in_process_client)
    assert works(in_process_client)
