"""What is too large for a call fails by name, before it is sent; whoever sent it stays."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import distributed
import pytest

from client_support import AGAINST, SOON, inc
from process_support import kill
from reliability_support import processes
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="distributed has other limits"),
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(8 * SOON, method="signal"),
]

# The limit is 255 MiB: crates/schedule/messages/src/length.rs, `LARGEST_VALUE`.
UNDER = 254 << 20
OVER = 256 << 20
LONG = 4 * SOON


class Unpicklable:
    def __reduce__(self):
        raise TypeError("it is never pickled")


class Box:
    def give(self, count: int) -> bytes:
        return bytes(count)

    def take(self, data: bytes) -> int:
        return len(data)


def raise_bytes(count: int) -> None:
    raise ValueError(bytes(count))


def print_long(count: int) -> int:
    print("x" * count)
    return count


def log_from_task(count: int) -> None:
    distributed.get_worker().log_event("large", bytes(count))


def set_from_task(count: int) -> None:
    distributed.Variable("of-a-task").set(bytes(count))


def scheduler_gives(count: int) -> bytes:
    return bytes(count)


def scheduler_takes(data: bytes) -> int:
    return len(data)


class Heavy(distributed.WorkerPlugin):
    """A plugin that carries something."""

    name = "heavy"

    def __init__(self, data: bytes) -> None:
        self.data = data


def upload(client) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "heavy.py")
        path.write_bytes(b"#" + bytes(OVER))
        client.upload_file(str(path))


@pytest.fixture(scope="module")
def cluster(shared_client):
    return shared_client.get()


@pytest.fixture
def guarded(cluster):
    """A client; afterwards everybody who was there is there."""
    client = cluster
    kept = client.submit(inc, 41, key="kept")
    assert kept.result(SOON) == 42
    pids = client.run(os.getpid)
    variable = distributed.Variable("guard", client=client)
    variable.set(1)
    yield client
    assert variable.get(SOON) == 1
    assert client.run(os.getpid) == pids
    assert kept.status == "finished"
    assert kept.result(SOON) == 42
    assert client.submit(inc, 1, pure=False).result(SOON) == 2
    assert client.who_has(kept)["kept"]


REFUSED = {
    "run-gives": lambda client: client.run(bytes, OVER, workers=[worker_of(client)]),
    "run-takes": lambda client: client.run(len, bytes(OVER), workers=[worker_of(client)]),
    "variable": lambda client: distributed.Variable("large", client=client).set(bytes(OVER)),
    "queue": lambda client: distributed.Queue("large", client=client).put(bytes(OVER)),
    "publish": lambda client: client.publish_dataset(large=bytes(OVER)),
    "metadata": lambda client: client.set_metadata("large", bytes(OVER)),
    "event": lambda client: client.log_event("large", bytes(OVER)),
    "scheduler-takes": lambda client: client.run_on_scheduler(scheduler_takes, bytes(OVER)),
    "scheduler-gives": lambda client: client.run_on_scheduler(scheduler_gives, OVER),
    "actor-gives": lambda client: actor(client).give(OVER).result(LONG),
    "actor-takes": lambda client: actor(client).take(bytes(OVER)).result(LONG),
    "plugin": lambda client: client.register_plugin(Heavy(bytes(OVER))),
    "upload": upload,
    "cancel": lambda client: client.cancel([client.submit(inc, 5)], msg="x" * OVER),
    "of-a-task": lambda client: client.submit(set_from_task, OVER, pure=False).result(LONG),
}


def actor(client):
    return client.submit(Box, actor=True, pure=False).result(SOON)


@pytest.mark.parametrize("call", list(REFUSED))
def test_too_much_for_a_call_is_refused(guarded, call):
    with pytest.raises(Exception, match="at most 267386880 go into a call"):
        REFUSED[call](guarded)


WORKS = {
    "run-all-gives": lambda client: client.run(bytes, OVER),
    "run-all-takes": lambda client: client.run(len, bytes(OVER)),
    "result": lambda client: client.submit(bytes, OVER, pure=False).result(LONG),
    "argument": lambda client: client.submit(len, bytes(OVER), pure=False).result(LONG),
    "output": lambda client: client.submit(print_long, 1 << 24, pure=False).result(LONG),
    "exception": lambda client: client.submit(raise_bytes, OVER, pure=False).exception(LONG),
    "actor-gives": lambda client: actor(client).give(UNDER).result(LONG),
    "actor-takes": lambda client: actor(client).take(bytes(UNDER)).result(LONG),
    "variable": lambda client: round_trip(client),
    "key": lambda client: client.submit(inc, 1, key="k" * (5 << 20)).result(LONG),
}


def worker_of(client):
    return next(iter(client.scheduler_info()["workers"]))


def round_trip(client):
    variable = distributed.Variable("nearly", client=client)
    variable.set(bytes(UNDER))
    assert len(variable.get(LONG)) == UNDER
    variable.delete()


@pytest.mark.parametrize("call", list(WORKS))
def test_what_fits_or_goes_another_way_works(guarded, call):
    WORKS[call](guarded)


def test_a_key_that_is_too_long_is_refused(guarded):
    with pytest.raises(ValueError, match="a key takes 17000005 bytes, and may take 16777216"):
        guarded.submit(inc, 1, key="k" * 17_000_000)
    with pytest.raises(ValueError, match="may take 16777216 at most"):
        guarded.get({"k" * 17_000_000: (inc, 1)}, "k" * 17_000_000)


def test_a_name_that_is_too_long_is_refused(guarded):
    address = guarded.scheduler.address
    with pytest.raises(ValueError, match=r"takes \d+ bytes, and the scheduler takes 65536 at most"):
        type(guarded)(address, name="n" * 70_000, set_as_default=False)


def test_many_large_answers_at_once_leave_everybody_there(guarded):
    """More than may wait for one node: those beyond fail by name."""
    boxes = [actor(guarded) for _ in range(2)]
    answers = [box.give(200 << 20) for box in boxes for _ in range(3)]
    # Of an OSError, distributed's actors say the same whatever it is.
    told = ("has not read those before", "Unable to contact Actor's worker")
    for answer in answers:
        try:
            length = len(answer.result(LONG))
        except OSError as error:
            length = 200 << 20 if any(text in str(error) for text in told) else -1
        assert length == 200 << 20


def test_an_event_of_a_task_is_refused_there(guarded):
    with pytest.raises(Exception, match="go into a call"):
        guarded.submit(log_from_task, OVER, pure=False).result(LONG)


def test_an_argument_of_an_actor_that_cannot_be_pickled_is_told(guarded):
    with pytest.raises(TypeError, match="never pickled"):
        actor(guarded).take(Unpicklable()).result(SOON)


class OtherHeavy(Heavy):
    name = "other-heavy"


def plugins_of(dask_worker) -> list[str]:
    return sorted({"heavy", "other-heavy"} & set(dask_worker.plugins))


def test_plugins_that_do_not_fit_into_one_call_together_reach_workers_that_come_later(new_client):
    client = new_client(workers=1)
    for plugin in (Heavy, OtherHeavy):
        client.register_plugin(plugin(bytes(130 << 20)))
    before = processes(client)["0"]
    kill(before)
    until(lambda: processes(client)["0"] != before, "it is replaced")
    client.wait_for_workers(1, timeout=2 * SOON)
    assert list(client.run(plugins_of).values()) == [["heavy", "other-heavy"]]
