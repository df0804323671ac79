"""What others call on a worker, its plugins, its files and its log."""

from __future__ import annotations

import asyncio
import io
import logging
import pickle
import subprocess
import sys
import threading
import traceback
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import distributed
import pytest
from distributed import (
    get_worker,
)
from distributed.diagnostics.plugin import UploadFile, WorkerPlugin
from distributed.protocol.pickle import dumps
from python_sides import SOON, Hub, HubClient, HubWorker

from treadle.common._log import Log, Tail
from treadle.scheduler import Sidecar
from treadle.worker import Service

# calls


def run(
    caller: HubClient,
    worker: HubWorker,
    function: Any,
    *args: Any,
    wait: bool = True,
    **kwargs: Any,
) -> Any:
    return caller.ask(
        worker.address,
        "run",
        function=dumps(function),
        args=dumps(args),
        kwargs=dumps(kwargs),
        wait=wait,
    )


def test_functions_run_on_the_worker(caller: HubClient, worker: HubWorker) -> None:
    def about(x: int, dask_worker: Any, y: int = 0) -> Any:
        return x, y, dask_worker.name, get_worker() is dask_worker

    response = run(caller, worker, about, 1, y=2)
    assert response == {"status": "OK", "result": (1, 2, "w", True)}


def test_coroutine_functions_run_on_the_worker(caller: HubClient, worker: HubWorker) -> None:
    async def put(dask_worker: Any) -> int:
        await asyncio.sleep(0)
        dask_worker.put = True
        return 5

    assert run(caller, worker, put)["result"] == 5
    del worker.service.worker.put
    assert run(caller, worker, put, wait=False) == {"status": "OK", "result": None}
    until = run(caller, worker, _wait_for_put)
    assert until["result"] is True


async def _wait_for_put(dask_worker: Any) -> bool:
    for _ in range(SOON * 100):
        if hasattr(dask_worker, "put"):
            return True
        await asyncio.sleep(0.01)
    return False


def test_what_a_function_raises_is_the_answer(caller: HubClient, worker: HubWorker) -> None:
    response = run(caller, worker, lambda: 1 / 0)
    assert response["status"] == "error"
    _, exception, shown = distributed.core.clean_exception(**response)
    assert type(exception) is ZeroDivisionError
    assert "<lambda>" in [frame.name for frame in traceback.extract_tb(shown)]


def test_a_function_that_cannot_be_unpickled_is_an_error(
    caller: HubClient, worker: HubWorker
) -> None:
    with pytest.raises(ModuleNotFoundError):
        caller.ask(worker.address, "run", function=b"cno_such_module\nf\n.", args=b"", kwargs=b"")
    assert caller.ask(worker.address, "ping") == "pong"


def test_a_result_that_cannot_be_pickled_is_an_error(caller: HubClient, worker: HubWorker) -> None:
    response = run(caller, worker, threading.Lock)
    assert response["status"] == "error"
    with pytest.raises(TypeError, match=r"Could not serialize object of type _thread\.lock"):
        raise pickle.loads(response["exception"])


def test_an_operation_that_is_not_served_is_named(caller: HubClient, worker: HubWorker) -> None:
    with pytest.raises(NotImplementedError, match="free_keys"):
        caller.ask(worker.address, "free_keys")


def test_what_a_worker_says_of_itself(caller: HubClient, worker: HubWorker) -> None:
    worker.values["x"] = 1
    identity = caller.ask(worker.address, "identity")
    assert identity["type"] == "Worker"
    assert identity["nthreads"] == 1
    assert caller.ask(worker.address, "keys") == ["x"]
    assert "packages" in caller.ask(worker.address, "versions", packages=["pip"])
    info = Service.info()
    assert info["pid"] > 0
    assert info["packages"]["distributed"] == distributed.__version__


def test_call_stacks_are_of_the_tasks_that_run(caller: HubClient, worker: HubWorker) -> None:
    inside, go = threading.Event(), threading.Event()

    def waits_here() -> None:
        inside.set()
        go.wait(SOON)

    task = worker.start(waits_here, "k")
    assert inside.wait(SOON)
    stacks = caller.ask(worker.address, "call_stack", keys=None)
    assert set(stacks) == {"k"}
    assert any("waits_here" in line for line in stacks["k"])
    assert caller.ask(worker.address, "call_stack", keys=["other"]) == {}
    go.set()
    task.result(SOON)


def test_the_log_is_read_newest_first(caller: HubClient, worker: HubWorker) -> None:
    logger = logging.getLogger("distributed.worker")
    for number in range(3):
        logger.warning("line %d", number)
    entries = caller.ask(worker.address, "get_logs", n=2)
    assert [level for level, _ in entries] == ["WARNING"] * 2
    assert [text[-6:] for _, text in entries] == ["line 2", "line 1"]
    assert "line 0" in worker.service.log()


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("terminate", "worker-close"),
        ("close_gracefully", "drained"),
        ("restart", "it was asked to restart"),
    ],
)
def test_a_worker_is_told_to_end(
    caller: HubClient,
    worker: HubWorker,
    operation: str,
    reason: str,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    caller.ask(worker.address, operation)
    eventually(lambda: worker.ended == [reason])


# plugins


class Marks(WorkerPlugin):
    def __init__(self, value: Any) -> None:
        self.value = value

    async def setup(self, worker: Any) -> None:
        await asyncio.sleep(0)
        worker.marks = [*getattr(worker, "marks", []), self.value]

    async def teardown(self, worker: Any) -> None:
        worker.marks.append(-self.value)


class Watcher(WorkerPlugin):
    def setup(self, worker: Any) -> None:
        worker.seen = []
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        self.worker.seen.append((key, start, finish))


def add_plugin(caller: HubClient, worker: HubWorker, plugin: Any, name: str, **more: Any) -> Any:
    pickled = cloudpickle.dumps(plugin)
    return caller.ask(worker.address, "plugin-add", plugin=pickled, name=name, **more)


def test_a_plugin_replaces_another_of_its_name(caller: HubClient, worker: HubWorker) -> None:
    for value in (1, 2):
        assert add_plugin(caller, worker, Marks(value), "m") == {"status": "OK"}
    assert worker.service.worker.marks == [1, -1, 2]
    assert caller.ask(worker.address, "plugin-remove", name="m") == {"status": "OK"}
    assert worker.service.worker.marks == [1, -1, 2, -2]
    assert worker.service.worker.plugins == {}
    assert caller.ask(worker.address, "plugin-remove", name="m")["status"] == "error"


def test_a_registration_that_arrives_twice_counts_once(
    caller: HubClient, worker: HubWorker
) -> None:
    for number in (1, 1, 2):
        add_plugin(caller, worker, Marks(number), "m", number=number)
    assert worker.service.worker.marks == [1, -1, 2]


def test_a_plugin_that_fails_says_why(caller: HubClient, worker: HubWorker) -> None:
    class Bad(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            raise ValueError("bad plugin")

    response = add_plugin(caller, worker, Bad(), "bad")
    _, exception, _ = distributed.core.clean_exception(**response)
    assert type(exception) is ValueError
    assert worker.run(int) == 0
    with pytest.raises(TypeError, match="is not a WorkerPlugin"):
        add_plugin(caller, worker, object(), "none")


def test_transitions_are_observed_only_where_a_plugin_wants_them(
    caller: HubClient, worker: HubWorker
) -> None:
    add_plugin(caller, worker, Marks(1), "m")
    assert not worker.observed
    add_plugin(caller, worker, Watcher(), "w")
    assert worker.observed
    worker.service.transition("k", "ready", "executing")
    assert worker.service.worker.seen == [("k", "ready", "executing")]
    caller.ask(worker.address, "plugin-remove", name="w")
    assert not worker.observed


def test_the_end_tears_plugins_down(hub: Hub, caller: HubClient, tmp_path: Path) -> None:
    worker = HubWorker(hub, "w", tmp_path)
    add_plugin(caller, worker, Marks(1), "m")
    worker.leave()
    assert worker.service.worker.marks == [1, -1]
    assert worker.service.worker.status == distributed.core.Status.closed


def test_a_service_may_end_without_having_started() -> None:
    Service().stop()


def test_a_plugin_that_cannot_be_loaded_does_not_keep_a_worker_from_starting(
    hub: Hub, caller: HubClient, sidecar: Sidecar, tmp_path: Path
) -> None:
    caller.sidecar("register_worker_plugin", plugin=b"cno_such_module\nf\n.", name="n")
    worker = HubWorker(hub, "w", tmp_path)
    assert worker.run(int) == 0
    worker.leave()


def test_preload_scripts_run_first(hub: Hub, tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "treadle_preload_script.py"
    script.parent.mkdir()
    script.write_text("def dask_setup(worker):\n    worker.preloaded = True\n")
    worker = HubWorker(hub, "w", tmp_path, preload=[str(script)])
    assert worker.run(lambda: get_worker().preloaded) is True  # type: ignore[attr-defined]
    worker.leave()


# files


def test_a_module_is_uploaded_and_uploaded_again(
    caller: HubClient, worker: HubWorker, tmp_path: Path
) -> None:
    file = tmp_path / "treadle_uploaded_module.py"
    for value in (1, 2):
        file.write_text(f"x = {value}")
        assert add_plugin(caller, worker, UploadFile(str(file)), "u") == {"status": "OK"}
        assert worker.run(_uploaded) == value
    assert Path(worker.directory, file.name).exists()


def _uploaded() -> int:
    import treadle_uploaded_module

    return treadle_uploaded_module.x


def test_an_archive_is_uploaded(caller: HubClient, worker: HubWorker) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("treadle_uploaded_package/__init__.py", "y = 3")
    response = caller.ask(
        worker.address, "upload_file", filename="p.zip", data=file.getvalue(), load=True
    )
    assert response == {"status": "OK", "nbytes": len(file.getvalue())}
    assert worker.run(lambda: __import__("treadle_uploaded_package").y) == 3


def test_a_file_cannot_be_uploaded_elsewhere(caller: HubClient, worker: HubWorker) -> None:
    for name in ("../x.py", "/tmp/x.py", "..", ""):
        with pytest.raises(ValueError, match="not by a path"):
            caller.ask(worker.address, "upload_file", filename=name, data=b"", load=False)


def test_a_module_that_does_not_load_is_an_error(caller: HubClient, worker: HubWorker) -> None:
    with pytest.raises(SyntaxError):
        caller.ask(worker.address, "upload_file", filename="treadle_bad.py", data=b"def", load=True)


# the log


def test_the_tail_keeps_the_last_whole_lines() -> None:
    tail = Tail(limit=100)
    for number in range(1000):
        tail.write(f"line {number}\n")
    lines = tail.text().splitlines()
    assert lines[-1] == "line 999"
    assert lines[0].startswith("line ")
    assert len(tail.text().encode()) <= 100
    tail.write("x" * 1000)
    assert tail.text() == "x" * 100
    tail.write("ü" * 1000)
    assert set(tail.text()) == {"ü"}


def test_standard_error_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(with_stderr=True)
    try:
        print("to stderr", file=sys.stderr)
        logging.getLogger("treadle").warning("to the log")
    finally:
        log.close()
    print("afterwards", file=sys.stderr)
    assert "to stderr" in log.text()
    assert "to the log" in log.text()
    assert "afterwards" not in log.text()
    assert "to stderr" in capsys.readouterr().err


def test_the_log_keeps_nothing_alive() -> None:
    class Value:
        pass

    log = Log()
    try:
        value = Value()
        alive = weakref.ref(value)
        record = logging.LogRecord("name", logging.ERROR, "file", 1, "about %s", (value,), None)
        log.handle(record)
        del record, value
        assert alive() is None
        assert "about <" in log.text()
    finally:
        log.close()


def test_warnings_are_still_shown() -> None:
    code = (
        "import logging, distributed; from treadle.common._log import Log; logs = Log(), Log(); "
        "logging.getLogger('treadle.x').warning('to people'); "
        "logging.getLogger('treadle.x').info('not to people')"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, timeout=SOON, capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines() == ["to people"]
