"""The scheduler's Python side: functions, plugins, and calls that go wrong."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from distributed.diagnostics.plugin import SchedulerPlugin, SchedulerUploadFile, WorkerPlugin
from distributed.protocol import to_serialize
from distributed.protocol.pickle import dumps
from python_sides import SOON, Hub, HubClient, HubWorker

from treadle.common._calls import Opaque, pack, unpack
from treadle.scheduler import Sidecar


class Unpickled:
    """Counts where it is unpickled."""

    count = 0

    def __reduce__(self) -> Any:
        return _unpickled, ()


def _unpickled() -> Unpickled:
    Unpickled.count += 1
    return Unpickled()


# functions


def run(client: HubClient, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return client.sidecar(
        "run_function", function=dumps(function), args=dumps(args), kwargs=dumps(kwargs), wait=True
    )


def test_functions_run_on_the_scheduler(hub: Hub, alice: HubClient, tmp_path: Path) -> None:
    worker = HubWorker(hub, "w", tmp_path)

    def about(x: int, dask_scheduler: Any) -> Any:
        return x, dask_scheduler.address, [w.name for w in dask_scheduler.workers.values()]

    assert run(alice, about, 1) == {"status": "OK", "result": (1, "treadle://127.0.0.1:1", ["w"])}
    worker.leave()


def test_coroutine_functions_run_on_the_scheduler(alice: HubClient) -> None:
    async def about(dask_scheduler: Any) -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert run(alice, about)["result"] == "treadle-sidecar"


def test_what_a_function_raises_on_the_scheduler_is_told(alice: HubClient) -> None:
    def fail() -> None:
        raise ValueError("no")

    response = run(alice, fail)
    assert response["status"] == "error"
    assert isinstance(pickle.loads(response["exception"]), ValueError)
    # The next call is served.
    assert run(alice, int)["result"] == 0


def test_a_result_that_cannot_be_pickled_is_an_error(alice: HubClient) -> None:
    response = run(alice, threading.Lock)
    assert response["status"] == "error"
    error = pickle.loads(response["exception"])
    assert isinstance(error, TypeError)
    assert "Could not serialize object of type" in str(error)


# plugins


class Hooks(SchedulerPlugin):
    name = "hooks"

    def __init__(self, idempotent: bool = False) -> None:
        self.idempotent = idempotent

    async def start(self, scheduler: Any) -> None:
        scheduler.set_metadata(["started"], scheduler.get_metadata(["started"], 0) + 1)
        scheduler.set_metadata(["told"], [])
        scheduler.set_metadata(["events"], [])
        self.scheduler = scheduler

    def add_worker(self, scheduler: Any, worker: str) -> None:
        scheduler.task_metadata["told"].append(("add_worker", worker))

    async def remove_worker(self, scheduler: Any, worker: str, *, stimulus_id: str) -> None:
        scheduler.task_metadata["told"].append(("remove_worker", worker))

    def remove_client(self, scheduler: Any, client: str) -> None:
        raise RuntimeError("this is logged, and nothing else")

    def restart(self, scheduler: Any) -> None:
        scheduler.task_metadata["told"].append(("restart",))

    def log_event(self, topic: str, msg: Any) -> None:
        self.scheduler.task_metadata["events"].append((topic, msg))


def add_plugin(client: HubClient, plugin: Any, *, idempotent: bool = False) -> None:
    client.sidecar(
        "register_scheduler_plugin",
        plugin=cloudpickle.dumps(plugin),
        name=plugin.name,
        idempotent=idempotent,
    )


def test_scheduler_plugins_are_told(hub: Hub, alice: HubClient, bob: HubClient) -> None:
    add_plugin(alice, Hooks())
    hub.notify("worker-joined", address="treadle://w:1", name="w")
    bob.leave()
    alice.sidecar("log_event", topic="t", msg=1)
    hub.notify("restarted")
    hub.notify("worker-lost", address="treadle://w:1", name="w", cause="signal 9")
    assert alice.sidecar("get_metadata", keys=["told"]) == [
        ("add_worker", "treadle://w:1"),
        ("restart",),
        ("remove_worker", "treadle://w:1"),
    ]
    # The scheduler logs events of its own, as distributed's does.
    events = alice.sidecar("get_metadata", keys=["events"])
    assert ("t", 1) in events
    assert ("Client-bob", {"action": "remove-client", "client": "Client-bob"}) in events
    alice.sidecar("unregister_scheduler_plugin", name="hooks")
    hub.notify("restarted")
    assert len(alice.sidecar("get_metadata", keys=["told"])) == 3
    with pytest.raises(ValueError, match="Could not find plugin"):
        alice.sidecar("unregister_scheduler_plugin", name="hooks")


def test_an_idempotent_scheduler_plugin_starts_once(alice: HubClient) -> None:
    for _ in range(2):
        add_plugin(alice, Hooks(), idempotent=True)
    assert alice.sidecar("get_metadata", keys=["started"]) == 1
    add_plugin(alice, Hooks())
    assert alice.sidecar("get_metadata", keys=["started"]) == 2


def test_hooks_that_are_not_served_are_named(alice: HubClient) -> None:
    class Watcher(SchedulerPlugin):
        name = "watcher"

        def valid_workers_downscaling(self, *args: Any, **kwargs: Any) -> Any:
            pass

    with pytest.raises(NotImplementedError, match="valid_workers_downscaling"):
        add_plugin(alice, Watcher())


def test_nanny_plugins_are_refused_where_a_worker_has_no_nanny(
    hub: Hub, alice: HubClient, tmp_path: Path
) -> None:
    def register(**options: Any) -> Any:
        return alice.sidecar("register_nanny_plugin", plugin=b"", name="n", **options)

    worker = HubWorker(hub, "w", tmp_path)
    with pytest.raises(NotImplementedError, match=r"the nanny plugin n is refused: .* of w\."):
        register(idempotent=False)
    assert alice.sidecar("nanny_plugins") == []
    worker.leave()
    assert register(idempotent=False) == register(idempotent=True) == {}
    assert alice.sidecar("nanny_plugins") == [("n", 1)]
    assert alice.sidecar("nanny_plugin", name="n") == (b"", 1)
    assert alice.sidecar("unregister_nanny_plugin", name="n") == {}
    with pytest.raises(ValueError, match="The nanny plugin n does not exist"):
        alice.sidecar("unregister_nanny_plugin", name="n")


def test_files_are_uploaded_to_the_scheduler(alice: HubClient, tmp_path: Path) -> None:
    file = tmp_path / "treadle_uploaded_to_scheduler.py"
    file.write_text("answer = 42")
    add_plugin(alice, SchedulerUploadFile(str(file)))

    def ask() -> int:
        import treadle_uploaded_to_scheduler

        return treadle_uploaded_to_scheduler.answer

    assert run(alice, ask)["result"] == 42


class Marks(WorkerPlugin):
    name = "marks"

    def __init__(self, value: Any) -> None:
        self.value = value

    def setup(self, worker: Any) -> None:
        if self.value == "fail":
            raise ValueError("setup failed")
        worker.marks = [*getattr(worker, "marks", []), self.value]

    def teardown(self, worker: Any) -> None:
        worker.marks.append("down")


def add_worker_plugin(client: HubClient, value: Any, *, idempotent: bool = False) -> Any:
    return client.sidecar(
        "register_worker_plugin",
        plugin=cloudpickle.dumps(Marks(value)),
        name="marks",
        idempotent=idempotent,
    )


def test_worker_plugins_reach_workers_and_late_joiners(
    hub: Hub, alice: HubClient, tmp_path: Path
) -> None:
    early = HubWorker(hub, "early", tmp_path)
    assert add_worker_plugin(alice, 1) == {early.address: {"status": "OK"}}
    late = HubWorker(hub, "late", tmp_path)
    assert add_worker_plugin(alice, 2, idempotent=True) == {}
    assert early.service.worker.marks == late.service.worker.marks == [1]
    assert set(alice.sidecar("unregister_worker_plugin", name="marks")) == {
        early.address,
        late.address,
    }
    assert early.service.worker.marks == late.service.worker.marks == [1, "down"]
    with pytest.raises(ValueError, match="does not exist"):
        alice.sidecar("unregister_worker_plugin", name="marks")
    last = HubWorker(hub, "last", tmp_path)
    assert not hasattr(last.service.worker, "marks")
    for worker in (early, late, last):
        worker.leave()


def test_the_errors_of_worker_plugins_are_answered(
    hub: Hub, alice: HubClient, tmp_path: Path
) -> None:
    worker = HubWorker(hub, "w", tmp_path)
    (response,) = add_worker_plugin(alice, "fail").values()
    assert response["status"] == "error"
    assert "setup failed" in str(pickle.loads(response["exception"]))
    worker.leave()


def test_broadcast_says_which_workers_failed(hub: Hub, alice: HubClient, tmp_path: Path) -> None:
    worker = HubWorker(hub, "w", tmp_path)
    workers = [worker.address, "treadle://gone:1"]
    answers = alice.sidecar("broadcast", msg={"op": "ping"}, workers=workers, on_error="return")
    assert answers[worker.address] == "pong"
    assert isinstance(answers["treadle://gone:1"], OSError)
    assert alice.sidecar("broadcast", msg={"op": "ping"}) == {worker.address: "pong"}
    with pytest.raises(OSError, match="no node"):
        alice.sidecar("broadcast", msg={"op": "ping"}, workers=workers)
    worker.leave()


# calls


def test_an_operation_that_is_not_served_is_named(alice: HubClient) -> None:
    for operation in ("get_runspec", "stream:update-nothing"):
        with pytest.raises(NotImplementedError, match=operation):
            alice.sidecar(operation)


@pytest.mark.parametrize("argument", [None, 1, {}, {"kwargs": b"no pickle"}, {"kwargs": b"K\x01."}])
def test_a_malformed_call_is_an_error_and_nothing_else(
    hub: Hub, alice: HubClient, argument: Any
) -> None:
    answers: list[Any] = []
    told = threading.Event()

    def done(result: Any, error: Any) -> None:
        answers.append(error)
        told.set()

    hub.call(alice.name, "sidecar", "versions", argument, done)
    assert told.wait(SOON)
    assert isinstance(answers[0], bytes)
    assert "host" in alice.sidecar("versions", packages=[])


def test_the_end_of_the_connection_is_noticed(hub: Hub, sidecar: Sidecar) -> None:
    connection = hub.nodes["sidecar"]
    connection.put(lambda: connection.handlers.on_closed("the scheduler is gone"))
    assert sidecar.closed.wait(SOON)
    assert sidecar.reason == "the scheduler is gone"


def test_what_is_passed_on_stays_closed() -> None:
    argument = pack({"value": to_serialize(Unpickled()), "nested": [{"x": to_serialize((1, 2))}]})
    Unpickled.count = 0
    closed = unpack(argument, opening=False)
    assert isinstance(closed["value"], Opaque)
    assert Unpickled.count == 0
    assert unpack(pack(closed), opening=True)["nested"] == [{"x": (1, 2)}]
    assert Unpickled.count == 1
