"""Plugins of the nannies of workers: whoever started the process of a worker runs them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import Environ, NannyPlugin, UploadDirectory
from distributed.diagnostics.plugin import InstallPlugin

from client_support import AGAINST, SOON, make_client, make_in_process_client
from process_support import Process, kill, until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the processes are Treadle's")


class Told(NannyPlugin):
    """Writes down what happens to it, and what it knows of its nanny."""

    def __init__(self, file: Path, name: str = "told", **options: Any) -> None:
        self.file = file
        self.name = name
        vars(self).update(options)

    def tell(self, what: str) -> None:
        with open(self.file, "a") as file:
            file.write(f"{what} {self.name}\n")

    def setup(self, nanny: Any) -> None:
        self.tell(f"{nanny.name} begins in {os.getpid()}:")

    def teardown(self, nanny: Any) -> None:
        self.tell(f"{nanny.name} ends in {os.getpid()}:")


class Asking(NannyPlugin):
    """Uses what a nanny has, in a coroutine."""

    name = "asking"

    async def setup(self, nanny: Any) -> None:
        workers = (await nanny.scheduler.identity(n_workers=-1))["workers"]
        known = {str(worker["name"]): worker["pid"] for worker in workers.values()}
        assert known[str(nanny.name)] == nanny.pid
        assert nanny.worker_address in workers
        assert os.path.isdir(nanny.worker_dir)
        nanny.log_event("asked", {"status": nanny.status.name, "alive": nanny.is_alive()})
        with pytest.raises(NotImplementedError, match=r"Nanny\.listen of distributed"):
            nanny.listen()


class Failing(NannyPlugin):
    name = "failing"
    restart = True

    def setup(self, nanny: Any) -> None:
        raise ValueError(f"not at {nanny.name}")


class Install:
    """What an installer does: it says where it ran."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self) -> None:
        with open(self.file, "a") as file:
            file.write(f"{os.getpid()}\n")


def variable(name: str = "TREADLE_TEST") -> str | None:
    return os.environ.get(name)


def imported(name: str) -> Any:
    return __import__(name).x


def pids(client: Any) -> set[int]:
    return set(client.run(os.getpid).values())


def present(client: Any) -> set[int]:
    """The process ids of the workers that the scheduler knows."""
    return {worker["pid"] for worker in client.scheduler_info()["workers"].values()}


def lines(file: Path) -> list[str]:
    return sorted(file.read_text().splitlines()) if file.exists() else []


@pytest.fixture(scope="module")
def client() -> Any:
    with make_client(workers=2) as client:
        yield client


def test_environ_restarts_workers_and_stays(client):
    before = pids(client)
    client.register_plugin(Environ({"TREADLE_TEST": 1}), name="environ")
    after = client.run(variable)
    assert list(after.values()) == ["1", "1"]
    assert not before & pids(client)
    # A process that replaces another has it from its nanny.
    killed = min(pids(client))
    kill(killed)
    until(lambda: len(present(client) - {killed}) == 2, "it is replaced")
    assert list(client.run(variable).values()) == ["1", "1"]
    client.unregister_worker_plugin("environ", nanny=True)
    with pytest.raises(ValueError, match="nanny plugin environ does not exist"):
        client.unregister_worker_plugin("environ", nanny=True)


def test_plugins_run_in_the_process_that_looks_after_the_workers(client, tmp_path):
    file, before = tmp_path / "told", pids(client)
    names = sorted(str(worker["name"]) for worker in client.scheduler_info()["workers"].values())
    begun = [f"{name} begins in {os.getpid()}: told" for name in names]
    client.register_plugin(Told(file))
    assert lines(file) == begun
    client.register_plugin(Told(file, idempotent=True))
    assert lines(file) == begun
    client.unregister_worker_plugin("told", nanny=True)
    ended = [f"{name} ends in {os.getpid()}: told" for name in names]
    assert lines(file) == sorted([*begun, *ended])
    assert pids(client) == before


def test_a_nanny_knows_its_worker_and_the_scheduler(client):
    client.register_plugin(Asking())
    until(lambda: len(client.get_events("asked")) == 2, "both have told")
    events = [event for _, event in client.get_events("asked")]
    assert [event["status"] for event in events] == ["running"] * 2
    running = client.run(lambda dask_worker: dask_worker.pid, nanny=True)
    assert running == client.run(os.getpid)
    client.unregister_worker_plugin("asking", nanny=True)


def test_what_a_plugin_raises_is_raised_and_nothing_restarts(client):
    before = pids(client)
    with pytest.raises(ValueError, match="not at"):
        client.register_plugin(Failing())
    assert pids(client) == before
    client.unregister_worker_plugin("failing", nanny=True)


def test_a_directory_is_there_at_once_and_after_a_restart(client, tmp_path):
    package = tmp_path / "uploaded_to_nannies"
    package.mkdir()
    (package / "__init__.py").write_text("x = 5")
    client.register_plugin(UploadDirectory(str(package)))
    assert set(client.run(imported, package.name).values()) == {5}
    client.restart()
    assert set(client.run(imported, package.name).values()) == {5}
    assert package.name not in sys.modules
    client.unregister_worker_plugin(f"upload-directory-{package.name}", nanny=True)


def test_an_installer_runs_once_a_nanny_and_then_the_workers_restart(client, tmp_path):
    file, before = tmp_path / "installed", pids(client)
    plugin = InstallPlugin(Install(file), restart_workers=True)
    client.register_plugin(plugin)
    # The scheduler is in this process, as both nannies are.
    assert lines(file) == [str(os.getpid())] * 3
    assert not before & pids(client)
    client.unregister_worker_plugin(plugin.name, nanny=True)


def test_a_worker_without_a_nanny_refuses():
    with make_in_process_client() as client:
        with pytest.raises(NotImplementedError, match="nobody looks after the process of"):
            client.register_plugin(Environ({"TREADLE_TEST": 1}))
        with pytest.raises(NotImplementedError, match="has no nanny"):
            client.run(os.getpid, nanny=True)
        assert variable() is None


def test_plugins_of_workers_that_a_command_looks_after(start, join, tmp_path):
    file = tmp_path / "told"
    scheduler: Process = start("scheduler", "--port", "0")
    client = join(scheduler)
    client.register_plugin(Told(file, "first"))
    client.register_plugin(Environ({"TREADLE_TEST": 2}))
    client.register_plugin(Told(file, "last"))
    looked_after = start(
        *(
            "worker",
            scheduler.address,
            "--nanny",
            "--nworkers",
            "2",
            "--nthreads",
            "1",
            "--name",
            "w",
        )
    )
    client.wait_for_workers(2, timeout=2 * SOON)
    # They have joined once, as what they were to become.
    assert list(client.run(variable).values()) == ["2", "2"]
    assert looked_after.output.count("listening at") == 2
    begun = [line.partition("w-0 begins in ")[2] for line in file.read_text().splitlines()]
    assert [line for line in begun if line] == [
        f"{looked_after.pid}: first",
        f"{looked_after.pid}: last",
    ]
    looked_after.send(15)
    assert looked_after.wait() == 0
    assert f"w-1 ends in {looked_after.pid}: first" in lines(file)


def test_a_worker_that_nobody_looks_after_says_which_plugins_it_does_not_have(start, join):
    scheduler = start("scheduler", "--port", "0")
    client = join(scheduler)
    client.register_plugin(Environ({"TREADLE_TEST": 2}), name="environ")
    alone = start("worker", scheduler.address)
    client.wait_for_workers(1, timeout=2 * SOON)
    until(lambda: "no nanny plugins: environ" in alone.output, "it says so")
