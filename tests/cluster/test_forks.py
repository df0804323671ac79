"""Forks: a child that comes back ends, and what outlives its process holds nothing of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import treadle
from client_support import AGAINST, SOON
from process_support import alive, kill
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's cluster"),
    pytest.mark.usefixtures("quiet"),
]

# Seconds until a scheduler calls a worker silent: nothing here may wait for that.
NEVER = 1000.0


def reap(pid: int) -> int:
    """Wait until a child has ended; its exit status."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1000


def fork_and_return(number: int = 0):
    """Return in both processes; the parent when the child has ended."""
    child = os.fork()
    if child == 0:
        return "the child's"
    return number, os.getpid(), child, reap(child)


def fork_and_raise(error: type[BaseException], *arguments: object):
    child = os.fork()
    if child == 0:
        raise error(*arguments)
    return child, reap(child)


async def fork_in_a_coroutine():
    return fork_and_return()


def use_worker(directory):
    """What a child is told that uses the worker of its parent."""
    from distributed import get_client, get_worker, secede

    child = os.fork()
    if child == 0:
        told = []
        uses = [get_worker()._native.health, secede, lambda: get_client().submit(int).result(5)]
        for use in uses:
            try:
                use()
            except BaseException as error:
                told.append(f"{type(error).__name__}: {error}")
            else:
                told.append("nothing")
        with open(f"{directory}/told", "w") as file:
            file.write("\n".join(told))
        os._exit(0)
    return reap(child)


def fork_pool(numbers):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map_async(abs, numbers).get(SOON)


def end_process():
    """Begin a process that would never end, and end it."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(NEVER,))
    process.start()
    process.terminate()
    process.join(SOON / 2)
    status = process.exitcode
    process.kill()
    return status


def fork_process():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=queue.put, args=("from the child",))
    process.start()
    process.join(SOON)
    return process.exitcode, queue.get()


def fork_a_sleeper():
    """Leave a child that does nothing, for ever."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Its own child, too.
        os.fork()
        while True:
            time.sleep(60)
    return child


class Forker:
    def fork(self):
        return fork_and_return()


def copies_of(pid: int) -> set[int]:
    """The processes with the command line of another: those that it forked."""
    line = command(pid)
    return {other for other in processes() if other != pid and line and command(other) == line}


def processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class TestChildrenThatReturn:
    def test_a_task_is_its_parents(self, fresh_client):
        futures = fresh_client.map(fork_and_return, range(20), pure=False)
        results = fresh_client.gather(futures)
        assert [result[0] for result in results] == list(range(20))
        # The children have ended by themselves, and the workers are those that there were.
        assert {result[3] for result in results} == {0}
        workers = {worker["pid"] for worker in fresh_client.run(info).values()}
        assert {result[1] for result in results} <= workers
        log = "\n".join(worker.log() for worker in fresh_client.cluster.workers.values())
        until(lambda: "was forked in task" in log_of(fresh_client), log)
        assert not any(alive(result[2]) for result in results)

    @pytest.mark.parametrize(
        ("error", "status"),
        [((ValueError, "the child's"), 1), ((SystemExit, 3), 3), ((SystemExit,), 0)],
        ids=repr,
    )
    def test_what_a_child_raises_is_its_own(self, client, error, status):
        assert client.submit(fork_and_raise, *error, pure=False).result(SOON)[1] == status
        assert client.submit(sum, [1, 2]).result(SOON) == 3

    def test_the_next_call_of_a_fused_task_is_the_parents(self, client):
        import dask

        chain = dask.delayed(len)(dask.delayed(fork_and_return)(5))
        assert client.compute(chain).result(SOON) == 4

    def test_a_coroutine(self, client):
        assert client.submit(fork_in_a_coroutine, pure=False).result(SOON)[3] == 0
        assert client.submit(sum, [1, 2]).result(SOON) == 3

    def test_a_call(self, client):
        results = client.run(fork_and_return)
        assert [result[3] for result in results.values()] == [0, 0]
        assert len(client.run(os.getpid)) == 2

    def test_a_call_of_a_coroutine(self, client):
        results = client.run(fork_in_a_coroutine)
        assert [result[3] for result in results.values()] == [0, 0]

    def test_a_method_of_an_actor(self, client):
        actor = client.submit(Forker, actor=True).result(SOON)
        assert actor.fork().result(SOON)[3] == 0
        assert actor.fork().result(SOON)[3] == 0

    def test_a_cast(self, client):
        pytest.importorskip("ipyparallel")
        results = client[:].apply_sync(fork_and_return)
        assert [result[3] for result in results] == [0, 0]
        assert len(client[:].apply_sync(os.getpid)) == 2


def info():
    return {"pid": os.getpid()}


def log_of(client) -> str:
    return "\n".join(worker.log() for worker in client.cluster.workers.values())


class TestChildrenThatWork:
    def test_a_pool(self, client):
        assert client.submit(fork_pool, [-1, -2, -3]).result(SOON) == [1, 2, 3]

    def test_a_process(self, client):
        assert client.submit(fork_process, pure=False).result(SOON) == (0, "from the child")

    def test_a_process_that_is_terminated(self, client):
        assert client.submit(end_process, pure=False).result(SOON) == -signal.SIGTERM

    def test_the_worker_is_not_theirs(self, client, tmp_path):
        assert client.submit(use_worker, str(tmp_path), pure=False).result(SOON) == 0
        told = (tmp_path / "told").read_text().splitlines()
        assert len(told) == 3
        assert all("fork" in line for line in told), told


class TestChildrenThatOutlive:
    def test_a_worker_that_is_killed_is_gone_with_its_children(self, start, join):
        """It has nobody who started it and could say that it is gone, and it is not silent yet."""
        scheduler = start("scheduler", "--port", "0", "--worker-timeout", str(NEVER))
        worker = start("worker", scheduler.address, "--nthreads", "1", "--name", "one")
        client = join(scheduler)
        sleeper = client.submit(fork_a_sleeper, pure=False).result(SOON)
        until(lambda: len(copies_of(worker.pid)) == 2, "it has forked, and its child has")
        children = copies_of(worker.pid)
        assert sleeper in children
        running = client.submit(time.sleep, NEVER)
        kill(worker.pid)
        until(lambda: not client.scheduler_info()["workers"], "the scheduler has noticed")
        until(lambda: not any(map(alive, children)), "they are gone with it")
        running.release()

    def test_a_worker_that_leaves_is_gone_with_its_children(self, start, join):
        scheduler = start("scheduler", "--port", "0", "--worker-timeout", str(NEVER))
        worker = start("worker", scheduler.address, "--nthreads", "1", "--name", "one")
        client = join(scheduler)
        sleeper = client.submit(fork_a_sleeper, pure=False).result(SOON)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        until(lambda: not alive(sleeper), "it is gone with the worker")
        until(lambda: not client.scheduler_info()["workers"], "the scheduler has noticed")

    def test_a_client_that_is_killed_is_gone_though_its_child_lives(self, start, join, secret):
        scheduler = start("scheduler", "--port", "0")
        start("worker", scheduler.address, "--nthreads", "1")
        code = f"""
        import os, sys, time
        import treadle
        client = treadle.Client({scheduler.address!r})
        future = client.submit(pow, 2, 10, key="held")
        assert future.result() == 1024
        child = os.fork()
        if child == 0:
            time.sleep({NEVER})
            os._exit(0)
        print(child, flush=True)
        sys.stdin.read()
        """
        environment = {**os.environ, "TREADLE_SECRET_FILE": str(secret)}
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        with process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            try:
                watcher = join(scheduler)
                assert "held" in watcher.who_has()
                process.kill()
                process.wait(SOON)
                until(lambda: "held" not in watcher.who_has(), "the client is gone")
                assert alive(child)
            finally:
                kill(child)

    def test_a_process_that_is_killed_takes_its_cluster_along_though_its_child_lives(self):
        code = f"""
        import os, sys, time
        import treadle
        client = treadle.Client(workers=2)
        pids = list(client.run(os.getpid).values())
        child = os.fork()
        if child == 0:
            time.sleep({NEVER})
            os._exit(0)
        print(child, *pids, flush=True)
        sys.stdin.read()
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            child, *workers = map(int, process.stdout.readline().split())
            try:
                assert len(workers) == 2
                process.kill()
                process.wait(SOON)
                until(lambda: not any(map(alive, workers)), "the workers are gone")
                assert alive(child)
            finally:
                kill(child)


FORKED_CLIENT = """
import os, sys, time
import treadle

def double(x):
    return 2 * x

def main():
    client = treadle.Client(workers=1, threads_per_worker=1)
    done = client.submit(double, 3)
    large = client.submit(bytes, 10**6)
    slow = client.submit(time.sleep, 2)
    done.result(), large.result()
    child = os.fork()
    if child == 0:
        calls = {
            "result": lambda: large.result(10),
            "slow": lambda: slow.result(10),
            "submit": lambda: client.submit(double, 4),
            "map": lambda: client.map(double, [4]),
            "gather": lambda: client.gather([large, slow]),
            "scatter": lambda: client.scatter([1]),
            "run": lambda: client.run(os.getpid),
            "who_has": lambda: client.who_has(),
            "release": lambda: client.cancel([slow]),
            "a client": lambda: treadle.Client(client.scheduler.address),
            "a cluster": lambda: treadle.Client(workers=1),
        }
        bad = []
        for name, call in calls.items():
            try:
                call()
            except Exception as error:
                if "fork" not in str(error):
                    bad.append(f"{name}: {type(error).__name__}: {error}")
            else:
                bad.append(f"{name}: nothing")
        client.close()
        repr(client), repr(large)
        del done, large, slow, calls, call, client
        sys.stderr.write("\\n".join(bad))
        sys.stderr.flush()
        sys.exit(bool(bad))
    deadline = time.monotonic() + 60
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    assert pid and status == 0, (pid, status)
    slow.result(30)
    assert client.gather([done, client.submit(double, 5)]) == [6, 10]
    assert len(large.result(30)) == 10**6
    client.close()
    print("fine")

if __name__ == "__main__":
    main()
"""


def test_a_client_is_not_its_forked_childs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORKED_CLIENT)
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=4 * SOON
    )
    assert ran.stdout == "fine\n", ran.stderr


SPAWNING = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

import treadle

class Number:
    def __init__(self, value):
        self.value = value

class OwnError(Exception):
    pass

def double(number):
    if number.value < 0:
        raise OwnError(number)
    return Number(2 * number.value)

def use(address):
    assert double.__module__ == "__mp_main__"
    with treadle.Client(address) as client:
        numbers = client.gather(client.map(double, [Number(1), Number(2)]))
        try:
            client.submit(double, Number(-1)).result()
        except OwnError as error:
            numbers += error.args
        return [(type(one) is Number, one.value) for one in numbers]

if __name__ == "__main__":
    with treadle.LocalCluster(n_workers=1, threads_per_worker=1) as cluster:
        context = multiprocessing.get_context(sys.argv[1])
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print(pool.submit(use, cluster.scheduler_address).result())
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_script_defines_is_submitted_by_a_child_that_it_spawned(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNING)
    ran = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, timeout=2 * SOON
    )
    assert ran.stdout == "[(True, 2), (True, 4), (True, -1)]\n", ran.stderr


def test_standard_input_of_workers_is_empty():
    """Tasks, and programs that they start, would wait for ever."""
    with treadle.Client(n_workers=1, threads_per_worker=1, set_as_default=False) as client:
        ran = client.submit(subprocess.run, ["cat"], capture_output=True)
        assert ran.result(SOON).stdout == b""
        with pytest.raises(EOFError):
            client.submit(input).result(SOON)


BESIDE_A_CHILD = """
import multiprocessing, os, signal, sys
from pathlib import Path

import distributed
import treadle

class Marks(distributed.WorkerPlugin):
    def __init__(self, directory):
        self.directory = directory

    def setup(self, worker):
        self.mark = Path(self.directory, f"worker-{worker.name}")

    def teardown(self, worker):
        self.mark.touch()

def main():
    directory, how = sys.argv[1:]
    client = treadle.Client(n_workers=2, threads_per_worker=1)
    client.register_plugin(Marks(directory), name="marks")
    pids = client.run(os.getpid).values()
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=False)
    child.start()
    # Not to standard output, which the child has, too.
    Path(directory, "pids").write_text(" ".join(map(str, [child.pid, *pids])))
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    client.close()
    child.kill()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_workers_end_beside_a_forked_child_of_the_client(how, tmp_path):
    """A child of a ``ProcessPoolExecutor``, say, had the other end of the workers' standard input."""
    script = tmp_path / "script.py"
    script.write_text(BESIDE_A_CHILD)
    subprocess.run([sys.executable, str(script), str(tmp_path), how], timeout=SOON)
    child, *workers = map(int, (tmp_path / "pids").read_text().split())
    try:
        if how == "killed":
            assert alive(child)
            until(lambda: not any(map(alive, workers)), "the workers end")
        else:
            # They ended by themselves, not by force.
            assert {path.name for path in tmp_path.glob("worker-*")} == {"worker-0", "worker-1"}
    finally:
        if alive(child):
            kill(child)
