"""What workers keep on disk goes with them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from client_support import AGAINST, SOON
from process_support import kill
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's files"),
    pytest.mark.usefixtures("quiet"),
]

LIMIT = "100MB"
BLOCK = 20_000_000


def block(number: int) -> bytes:
    return bytes([number]) * BLOCK


def exit_at_once(status: int) -> None:
    os._exit(status)


def exit_by_exception(status: int) -> None:
    sys.exit(status)


def fill_memory() -> int:
    kept = []
    while True:
        kept.append(os.urandom(1 << 20) * 16)


def fork_a_sleeper() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    return child


def below(parent: Path) -> list[Path]:
    """What is below a directory. Some of it may be removed meanwhile, which `Path.rglob` does not bear."""
    walked = os.walk(parent)
    return [Path(path, name) for path, names, files in walked for name in (*names, *files)]


def directories(parent: Path) -> set[Path]:
    kinds = ("treadle-worker-", "treadle-cluster-")
    return {path for path in below(parent) if path.name.startswith(kinds)}


def on_disk(parent: Path) -> int:
    """Bytes of the files below a directory."""
    total = 0
    for path in below(parent):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def spill(client) -> list:
    futures = client.map(block, range(8), pure=False)
    for future in futures:
        future.exception(SOON)
    return futures


@pytest.fixture
def worker(start, join, tmp_path):
    """Starts workers of one directory; and a client of their scheduler."""
    scheduler = start("scheduler", "--port", "0")
    made = []

    def worker(name: str):
        options = ["--nthreads", "1", "--memory-limit", LIMIT, "--name", name]
        made.append(start("worker", scheduler.address, *options, "--local-directory", tmp_path))
        assert made[-1].address
        return made[-1]

    worker.client = lambda: join(scheduler)
    return worker


ENDS = {
    "killed": lambda client, process: kill(process.pid),
    "exits": lambda client, process: client.submit(exit_at_once, 3, retries=0),
    "system-exit": lambda client, process: client.submit(exit_by_exception, 3, retries=0),
    "memory": lambda client, process: client.submit(fill_memory, retries=0),
    "killed-with-child": lambda client, process: (
        client.submit(fork_a_sleeper, pure=False).result(SOON),
        kill(process.pid),
    ),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_the_next_worker_removes_what_one_left(worker, tmp_path, end):
    first = worker("first")
    client = worker.client()
    client.wait_for_workers(1, timeout=SOON)
    futures = spill(client)
    assert on_disk(tmp_path) >= BLOCK
    (old,) = directories(tmp_path)
    keep = ENDS[end](client, first)
    first.wait()
    # Nobody takes what they were.
    client.cancel(futures)
    worker("second")
    until(lambda: old not in directories(tmp_path), f"{old} is removed")
    assert on_disk(tmp_path) < BLOCK
    del keep


@pytest.mark.parametrize("end", ["system-exit", "memory"])
def test_a_worker_that_can_removes_its_own(worker, tmp_path, end):
    first = worker("first")
    client = worker.client()
    client.wait_for_workers(1, timeout=SOON)
    futures = spill(client)
    keep = ENDS[end](client, first)
    first.wait()
    assert not directories(tmp_path)
    del keep, futures


def test_a_worker_that_is_replaced_leaves_nothing(new_client, tmp_path):
    client = new_client(
        workers=1, threads_per_worker=1, memory_limit=LIMIT, local_directory=str(tmp_path)
    )
    (process,) = client.cluster.workers.values()
    for _ in range(3):
        futures = spill(client)
        assert on_disk(tmp_path) >= BLOCK
        old = {path for path in directories(tmp_path) if path.name.startswith("treadle-worker-")}
        pid = process.pid
        client.cancel(futures)
        kill(pid)
        until(lambda: process.pid != pid, "it is replaced")  # noqa: B023
        until(lambda: not old & directories(tmp_path), "its files are gone")  # noqa: B023
        client.wait_for_workers(1, timeout=SOON)
    client.close()
    assert not directories(tmp_path)


CLUSTER = """
import os, sys, time
import treadle
if __name__ == "__main__":
    client = treadle.Client(
        workers=1, threads_per_worker=1, memory_limit={limit!r}, local_directory={directory!r}
    )
    futures = client.map(lambda number: bytes([number]) * {block}, range(8))
    client.gather(client.map(len, futures))
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    print(child, flush=True)
    sys.stdin.read()
"""


def test_the_next_cluster_removes_what_one_left(new_client, tmp_path):
    """Although a forked child of the process that was killed lives on."""
    script = tmp_path / "script.py"
    place = tmp_path / "place"
    place.mkdir()
    code = CLUSTER.format(limit=LIMIT, directory=str(place), block=BLOCK)
    script.write_text(textwrap.dedent(code))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert on_disk(place) >= BLOCK
            (old,) = place.iterdir()
            process.kill()
            process.wait(SOON)

            def gone() -> bool:
                client = new_client(workers=0, local_directory=str(place))
                client.close()
                return not old.exists()

            until(gone, "it is swept when its workers have ended, too")
            assert not directories(place)
        finally:
            kill(child)


def test_a_cluster_that_its_program_leaves_leaves_nothing(tmp_path):
    code = f"""
    import treadle
    cluster = treadle.LocalCluster(
        n_workers=1, threads_per_worker=1, security=True, local_directory={str(tmp_path)!r}
    )
    client = treadle.Client(cluster)
    assert client.submit(abs, -1).result() == 1
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=2 * SOON)
    assert not below(tmp_path)


class TestDirectories:
    def test_a_forked_child_does_not_keep_one(self, tmp_path):
        from treadle import _core

        code = f"""
        import ctypes, os, signal
        from treadle import _core
        directory = _core.Directory("worker", {str(tmp_path)!r})
        ready, tell = os.pipe()
        # As C does it.
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            directory.remove()
            os.write(tell, b".")
            signal.pause()
        # The child lets go of the directory as soon as it runs.
        os.read(ready, 1)
        print(child, flush=True)
        os.kill(os.getpid(), {int(signal.SIGKILL)})
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            try:
                process.wait(SOON)
                (left,) = directories(tmp_path)
                own = _core.Directory("worker", tmp_path)
                assert directories(tmp_path) == {own.path} != {left}
                own.remove()
                assert not directories(tmp_path)
            finally:
                kill(child)

    def test_many_at_once(self, tmp_path):
        """Processes that make some, sweep and die meanwhile: none loses its own."""
        code = f"""
        import os
        from treadle import _core
        for number in range(60):
            directory = _core.Directory("worker", {str(tmp_path)!r})
            (directory.path / "file").write_text("something")
            if os.fork() == 0:
                # This one leaves its own behind.
                _core.Directory("worker", {str(tmp_path)!r})
                os._exit(0)
            os.wait()
            assert (directory.path / "file").exists(), number
            directory.remove()
        print("fine")
        """
        made = [
            subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
            for _ in range(4)
        ]
        for process in made:
            assert process.communicate(timeout=2 * SOON)[0] == b"fine\n"
        from treadle import _core

        _core.Directory("cluster", tmp_path).remove()
        assert not directories(tmp_path)
