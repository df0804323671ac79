"""What distributed's functions do inside of tasks."""

from __future__ import annotations

import asyncio
import pickle
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import pytest
from dask.context import thread_state
from distributed import (
    Lock,
    Semaphore,
    get_client,
    get_worker,
    rejoin,
    secede,
)
from python_sides import ADDRESS, SOON, Hub, HubClient, HubWorker

import treadle
from treadle.errors import _own_frames
from treadle.errors import _pickled as errors
from treadle.scheduler import Sidecar
from treadle.worker import blocking


def test_a_task_finds_its_worker(worker: HubWorker) -> None:
    worker.values["x"] = [1]

    def task() -> Any:
        found = get_worker()
        assert found is worker.service.worker
        assert found.data["x"] == [1]
        assert "y" not in found.data
        assert list(found.data) == ["x"]
        return (
            found.name,
            found.address,
            found.state.nthreads,
            found.nthreads,
            found.memory_limit,
            found.local_directory,
            found.resources,
            found.scheduler.address,
            found.get_current_task(),
        )

    assert worker.run(task, ("k", 1)) == (
        "w",
        worker.address,
        1,
        1,
        1 << 30,
        worker.directory,
        {"GPU": 2.0},
        ADDRESS,
        ("k", 1),
    )


def test_outside_of_tasks_there_is_no_worker(worker: HubWorker) -> None:
    with pytest.raises(ValueError, match="No worker found"):
        get_worker()
    with pytest.raises(KeyError):
        worker.service.worker.get_current_task()


def test_the_state_of_distributeds_threads(worker: HubWorker) -> None:
    def task() -> Any:
        assert thread_state.execution_state["worker"] is get_worker()
        assert thread_state.key == "k"
        assert {thread_state.key: 1} == {"k": 1}
        assert thread_state.key
        assert 0 <= distributed.metrics.time() - thread_state.start_time < SOON
        return thread_state.key

    key = worker.run(task, "k")
    assert pickle.loads(pickle.dumps(key)) is None, "no task runs in this thread"
    assert not hasattr(thread_state, "key")
    assert not hasattr(distributed.threadpoolexecutor.thread_state, "executor")


def test_secede_lets_another_task_run(worker: HubWorker) -> None:
    other = threading.Event()

    def task() -> bool:
        secede()
        return other.wait(SOON)

    first = worker.start(task)
    worker.run(other.set)
    assert first.result(SOON)


def test_a_task_secedes_once(worker: HubWorker) -> None:
    def task() -> None:
        secede()
        secede()

    with pytest.raises(KeyError):
        worker.run(task)
    assert worker.run(int) == 0, "its slot was freed once"


def test_rejoin_waits_for_a_slot(worker: HubWorker) -> None:
    seceded, taken, go = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def task() -> None:
        secede()
        seceded.set()
        taken.wait(SOON)
        rejoin()
        order.append("rejoined")

    def other() -> None:
        taken.set()
        go.wait(SOON)
        order.append("other")

    first = worker.start(task)
    assert seceded.wait(SOON)
    second = worker.start(other)
    assert taken.wait(SOON)
    go.set()
    second.result(SOON)
    first.result(SOON)
    assert order == ["other", "rejoined"]


def test_more_waiting_tasks_than_slots(worker: HubWorker) -> None:
    def task(depth: int) -> int:
        if depth == 0:
            return 0
        inner = worker.start(lambda: task(depth - 1))
        with blocking():
            return inner.result(SOON) + 1

    assert worker.run(lambda: task(6)) == 6


def test_blocking_does_nothing_where_there_is_no_slot_to_give(worker: HubWorker) -> None:
    with blocking():
        pass

    def task() -> None:
        secede()
        with blocking(), blocking():
            pass

    worker.run(task)
    assert worker.seceded == 1

    def nested() -> None:
        with blocking():
            with blocking():
                pass
            assert not worker.secede(), "the inner block gave nothing back"
        assert worker.secede()

    worker.run(nested)


def test_a_coroutine_runs_in_the_loop_and_keeps_its_slot(worker: HubWorker) -> None:
    async def task() -> Any:
        await asyncio.sleep(0)
        return (
            get_worker().name,
            get_worker().get_current_task(),
            threading.get_ident() == get_worker().thread_id,
            worker.seceded,
        )

    assert worker.run(task, "k") == ("w", "k", True, 0)


def test_coroutines_share_the_loop(worker: HubWorker, hub: Hub, tmp_path: Path) -> None:
    two = HubWorker(hub, "two", tmp_path, nthreads=2)
    events = asyncio.Event(), asyncio.Event()

    async def first() -> str:
        events[0].set()
        await events[1].wait()
        return get_worker().get_current_task()

    async def second() -> str:
        await events[0].wait()
        events[1].set()
        return get_worker().get_current_task()

    tasks = [two.start(first, "a"), two.start(second, "b")]
    assert [task.result(SOON) for task in tasks] == ["a", "b"]
    two.leave()


def test_the_frames_of_the_engine_are_not_in_a_coroutines_traceback(worker: HubWorker) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        worker.run(fails)
    _, shown = errors.load(errors.dump(caught.value.with_traceback(_of_the_future(caught.value))))
    assert [frame.name for frame in traceback.extract_tb(shown)] == ["fails"]


def test_files_whose_frames_are_hidden_are_there() -> None:
    assert all(Path(place).exists() for place in _own_frames.between())


def _of_the_future(error: BaseException) -> Any:
    """The traceback as the executor thread saw it."""
    found = error.__traceback__
    while found is not None and not found.tb_frame.f_code.co_filename.endswith("/_service.py"):
        found = found.tb_next
    assert found is not None
    return found


class FakeClient:
    """Stands for `treadle.Client`, which needs a real scheduler."""

    made: list[dict[str, Any]] = []  # noqa: RUF012
    status = "running"
    id = "Client-worker-1"

    def __init__(self, address: str, **kwargs: Any) -> None:
        self.scheduler = SimpleNamespace(address=address)
        self.loop = kwargs["loop"]
        self.made.append({"address": address, **kwargs})
        self.closed = threading.Event()

    def start_early(self) -> None:
        """It is connected from the start."""

    async def _close(self, fast: bool = False) -> None:
        self.closed.set()


def test_the_tasks_of_a_worker_share_a_client(
    worker: HubWorker, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treadle, "Client", FakeClient, raising=False)
    FakeClient.made.clear()
    found = {worker.run(get_client), worker.run(lambda: get_client(ADDRESS, resolve_address=False))}
    assert len(found) == 1
    (made,) = FakeClient.made
    assert made["address"] == ADDRESS
    assert made["secret"] == b"secret"
    assert made["loop"] is worker.service.worker.loop
    assert not made["asynchronous"]
    assert made["set_as_default"]
    worker.leave()
    assert found.pop().closed.is_set()


def test_distributeds_locks_work_in_tasks(worker: HubWorker, sidecar: Sidecar) -> None:
    def task() -> bool:
        lock = Lock("l")
        assert lock.acquire(timeout=SOON)
        assert not Lock("l").acquire(blocking=False)
        assert lock.locked()
        lock.release()
        return lock.locked()

    assert worker.run(task) is False

    async def coroutine() -> int:
        async with Semaphore(2, "s") as semaphore:
            return await semaphore.get_value()

    assert worker.run(coroutine) == 1


def test_the_locks_of_a_lost_worker_are_free(
    hub: Hub, worker: HubWorker, sidecar: Sidecar, tmp_path: Path
) -> None:
    lost = HubWorker(hub, "lost", tmp_path)
    assert lost.run(lambda: Lock("l").acquire())
    waiting = worker.start(lambda: Lock("l").acquire(timeout=SOON))
    lost.leave()
    assert waiting.result(SOON)


def test_what_tasks_log_reaches_those_that_subscribed(
    hub: Hub,
    worker: HubWorker,
    sidecar: Sidecar,
    caller: HubClient,
    capsys: pytest.CaptureFixture[str],
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    for topic in ("t", "print", "warn"):
        caller.sidecar("stream:subscribe-topic", topic=topic, client=caller.name)

    def task() -> None:
        get_worker().log_event("t", {"x": 1})
        distributed.print("hello", 1, sep="-")
        with pytest.warns(UserWarning, match="careful"):
            distributed.warn("careful")

    worker.run(task)
    eventually(lambda: len(caller.called) == 3)
    messages = {about["topic"]: about["event"][1] for _, about in caller.called}
    assert messages["t"] == {"x": 1, "worker": worker.service.worker.address}
    assert messages["print"]["args"] == ("hello", "1")
    assert pickle.loads(messages["warn"]["message"]) == "careful"
    with pytest.raises(TypeError, match="msgpack serializable"):
        worker.run(lambda: get_worker().log_event("t", threading.Lock()))
