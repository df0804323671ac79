"""`Client.run`, `run_on_scheduler`, `upload_file` and plugins of workers."""

from __future__ import annotations

import os
import threading
import zipfile
from contextlib import suppress

import pytest
from distributed import WorkerPlugin

from client_support import SOON, addresses


def test_a_function_runs_once_on_each_worker(client, workers):
    found = client.run(os.getpid)
    assert set(found) == set(workers)
    assert len(set(found.values())) == 2
    assert os.getpid() not in found.values()


def test_arguments_are_passed_on(client, workers):
    def f(a, b=0, c=0):
        return (a, b, c)

    assert client.run(f, 1, c=3) == dict.fromkeys(workers, (1, 0, 3))


def test_some_workers_only(client, workers):
    assert set(client.run(os.getpid, workers=workers[:1])) == set(workers[:1])


def test_dask_worker_is_the_worker(client, workers):
    def f(x, dask_worker):
        return (x, dask_worker.address, dask_worker.name)

    names = {a: info["name"] for a, info in client.scheduler_info()["workers"].items()}
    assert client.run(f, 5) == {a: (5, a, names[a]) for a in workers}


def test_the_worker_has_what_users_ask_it_for(client, workers):
    def f(dask_worker):
        return (
            str(dask_worker.local_directory),
            dask_worker.state.nthreads,
            isinstance(dask_worker.id, str),
            len(dask_worker.data),
        )

    for directory, nthreads, has_id, held in client.run(f).values():
        assert os.path.isdir(directory)
        assert (nthreads, has_id, held) == (1, True, 0)


def test_coroutine_functions_are_awaited(client, workers):
    async def f(x):
        import asyncio

        await asyncio.sleep(0)
        return x

    assert client.run(f, 7) == dict.fromkeys(workers, 7)


def test_nobody_waits_for_a_coroutine_that_should_not_be_waited_for(client, tmp_path, eventually):
    async def f(directory):
        import asyncio

        await asyncio.sleep(0)
        (directory / str(os.getpid())).touch()

    assert client.run(f, tmp_path, wait=False) is None
    eventually(lambda: len(list(tmp_path.iterdir())) == 2)


def test_an_error_is_raised(client):
    def f():
        raise ValueError("on a worker")

    with pytest.raises(ValueError, match="on a worker"):
        client.run(f)


def fail_on(name, dask_worker):
    if dask_worker.address == name:
        raise ValueError("on one worker")
    return "fine"


def test_an_error_may_be_returned(client, workers):
    found = client.run(fail_on, workers[0], on_error="return")
    assert found[workers[1]] == "fine"
    assert isinstance(found[workers[0]], ValueError)
    assert str(found[workers[0]]) == "on one worker"


def test_an_error_may_be_ignored(client, workers):
    assert client.run(fail_on, workers[0], on_error="ignore") == {workers[1]: "fine"}


def test_on_error_is_one_of_three(client, workers):
    with pytest.raises(ValueError, match="on_error must be"):
        client.run(fail_on, workers[0], on_error="invalid")


def test_functions_run_while_all_threads_are_busy(client, gate, eventually):
    from client_support import pass_gate

    futures = client.map(pass_gate, [gate] * 2, pure=False)
    eventually(lambda: gate.arrived(2))
    assert len(client.run(os.getpid)) == 2
    gate.open()
    client.gather(futures)


def test_lambdas_and_closures(client, workers):
    n = 5
    assert client.run(lambda: n) == dict.fromkeys(workers, 5)


def test_state_of_a_worker_stays(client):
    def remember(x):
        import builtins

        builtins.remembered = x

    def recall():
        import builtins

        return builtins.remembered

    client.run(remember, 99)
    assert set(client.run(recall).values()) == {99}
    assert client.submit(recall, pure=False).result(timeout=SOON) == 99


def test_on_the_scheduler(client):
    def f(x, y=0):
        return x + y

    assert client.run_on_scheduler(f, 1, y=2) == 3


def test_on_the_scheduler_with_the_scheduler(client):
    def f(dask_scheduler=None):
        return dask_scheduler.address

    assert client.run_on_scheduler(f) == client.scheduler_info()["address"]


def test_an_error_on_the_scheduler(client):
    def f():
        raise ZeroDivisionError("on the scheduler")

    with pytest.raises(ZeroDivisionError, match="on the scheduler"):
        client.run_on_scheduler(f)


def test_a_coroutine_on_the_scheduler(client):
    async def f():
        import asyncio

        await asyncio.sleep(0)
        return "done"

    assert client.run_on_scheduler(f) == "done"


def test_a_coroutine_on_the_scheduler_goes_on_when_its_client_has_closed(
    client, second_client, tmp_path, eventually
):
    async def f(directory):
        import asyncio

        (directory / "begun").touch()
        while not (directory / "closed").exists():
            await asyncio.sleep(0.01)
        (directory / "done").touch()

    def run():
        with suppress(Exception):
            second_client.run_on_scheduler(f, tmp_path)

    thread = threading.Thread(target=run)
    thread.start()
    eventually((tmp_path / "begun").exists)
    name = second_client.id
    second_client.close()
    eventually(lambda: name not in client.run_on_scheduler(_clients))
    (tmp_path / "closed").touch()
    eventually((tmp_path / "done").exists)
    thread.join(SOON)


def _clients(dask_scheduler):
    return list(dask_scheduler.clients)


def test_an_uploaded_module_can_be_imported(client, tmp_path):
    path = tmp_path / "uploaded_module.py"
    path.write_text("def f():\n    return 123\n")

    def g(_):
        import uploaded_module

        return uploaded_module.f()

    client.upload_file(str(path))
    assert client.gather(client.map(g, range(4), pure=False)) == [123] * 4


def test_a_module_that_is_uploaded_again_is_reloaded(client, tmp_path):
    path = tmp_path / "changing_module.py"

    def g():
        import changing_module

        return changing_module.VALUE

    for value in (1, 22):
        path.write_text(f"VALUE = {value}\n")
        client.upload_file(str(path))
        assert set(client.run(g).values()) == {value}


def test_an_uploaded_zip_can_be_imported(client, tmp_path):
    path = tmp_path / "uploaded_package.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("zipped_package/__init__.py", "a = 1\n")
        file.writestr("zipped_package/inner.py", "b = 2\n")

    def g(_):
        from zipped_package import a
        from zipped_package.inner import b

        return a + b

    client.upload_file(str(path))
    assert client.gather(client.map(g, range(4), pure=False)) == [3] * 4


def test_an_uploaded_file_lies_in_the_directory_of_each_worker(client, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("some data")

    def read(dask_worker):
        with open(os.path.join(dask_worker.local_directory, "data.txt")) as file:
            return file.read()

    client.upload_file(str(path))
    assert set(client.run(read).values()) == {"some data"}


def test_a_module_that_fails_to_import_is_reported(client, tmp_path):
    path = tmp_path / "broken_module.py"
    path.write_text("syntax error here\n")
    with pytest.raises(SyntaxError):
        client.upload_file(str(path))


def test_a_file_may_be_uploaded_without_importing_it(client, tmp_path):
    path = tmp_path / "unloaded_module.py"
    path.write_text("raise RuntimeError('must not be imported')\n")
    client.upload_file(str(path), load=False)


def test_a_file_that_does_not_exist(client, tmp_path):
    with pytest.raises(FileNotFoundError):
        client.upload_file(str(tmp_path / "missing.py"))


class Recorder(WorkerPlugin):
    """Leaves a mark on the worker for each of its calls."""

    name = "recorder"

    def __init__(self, value):
        self.value = value

    def setup(self, worker):
        self.note(worker, "setup")

    def teardown(self, worker):
        self.note(worker, "teardown")

    def note(self, worker, what):
        if not hasattr(worker, "notes"):
            worker.notes = []
        worker.notes.append((what, self.value))


def notes(dask_worker):
    found = getattr(dask_worker, "notes", [])
    dask_worker.notes = []
    return found


def test_a_plugin_is_set_up_and_torn_down_on_each_worker(client, workers):
    client.register_plugin(Recorder(1))
    assert list(client.run(notes).values()) == [[("setup", 1)]] * 2
    client.unregister_worker_plugin("recorder")
    assert list(client.run(notes).values()) == [[("teardown", 1)]] * 2


def test_registering_a_plugin_tells_how_each_worker_took_it(client, workers):
    found = client.register_plugin(Recorder(1), name="counted")
    assert {a: r["status"] for a, r in found.items()} == dict.fromkeys(workers, "OK")
    client.unregister_worker_plugin("counted")
    client.run(notes)


def test_a_plugin_of_the_same_name_replaces_the_other(client, workers):
    client.register_plugin(Recorder(1), name="replaced")
    client.register_plugin(Recorder(2), name="replaced")
    expected = [("setup", 1), ("teardown", 1), ("setup", 2)]
    assert list(client.run(notes).values()) == [expected] * 2
    client.unregister_worker_plugin("replaced")
    assert list(client.run(notes).values()) == [[("teardown", 2)]] * 2


def test_an_idempotent_plugin_is_registered_once(client, workers):
    first, second = Recorder(1), Recorder(2)
    first.idempotent = second.idempotent = True
    client.register_plugin(first, name="once")
    client.register_plugin(second, name="once")
    assert list(client.run(notes).values()) == [[("setup", 1)]] * 2
    client.unregister_worker_plugin("once")
    client.run(notes)


def test_a_task_finds_the_plugin_by_its_name(client):
    def value():
        from distributed import get_worker

        return get_worker().plugins["findable"].value

    client.register_plugin(Recorder(42), name="findable")
    assert client.submit(value, pure=False).result(timeout=SOON) == 42
    client.unregister_worker_plugin("findable")
    client.run(notes)


def test_a_plugin_with_coroutines(client, workers):
    class Async(WorkerPlugin):
        async def setup(self, worker):
            worker.async_plugin = "set up"

    def read(dask_worker):
        return dask_worker.async_plugin

    client.register_plugin(Async(), name="async")
    assert client.run(read) == dict.fromkeys(workers, "set up")
    client.unregister_worker_plugin("async")


def test_a_plugin_that_fails_is_reported(client):
    class Broken(WorkerPlugin):
        def setup(self, worker):
            raise ValueError("cannot be set up")

    with pytest.raises(ValueError, match="cannot be set up"):
        client.register_plugin(Broken(), name="broken")


def test_an_unknown_plugin_cannot_be_removed(client):
    with pytest.raises(ValueError, match="unknown-plugin"):
        client.unregister_worker_plugin("unknown-plugin")


def test_a_plugin_must_be_an_instance_of_a_plugin_class(client):
    class Duck:
        def setup(self, worker):
            pass

    with pytest.raises(TypeError, match="duck-typed"):
        client.register_plugin(Duck())
    with pytest.raises(TypeError, match="instance"):
        client.register_plugin(Recorder)


def test_callbacks_of_workers(client, workers):
    def setup(dask_worker):
        dask_worker.called_back = True

    client.register_worker_callbacks(setup)

    def read(dask_worker):
        return dask_worker.called_back

    assert client.run(read) == dict.fromkeys(workers, True)


def test_a_new_worker_gets_the_plugins_and_the_files(fresh_client, tmp_path):
    path = tmp_path / "early_module.py"
    path.write_text("VALUE = 5\n")
    fresh_client.upload_file(str(path))
    fresh_client.register_plugin(Recorder(3))
    before = set(fresh_client.run(os.getpid).values())
    fresh_client.restart()

    def read(dask_worker):
        import early_module

        return (early_module.VALUE, dask_worker.notes)

    assert before.isdisjoint(fresh_client.run(os.getpid).values())
    assert list(fresh_client.run(read).values()) == [(5, [("setup", 3)])] * 2
    assert len(addresses(fresh_client)) == 2
