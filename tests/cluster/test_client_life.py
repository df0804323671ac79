"""How clients begin and end: closing, restarting, several clients, the current client."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import dask
import distributed
import pytest
from dask import delayed
from distributed import Client, default_client, get_client, wait, worker_client
from distributed.client import ClosedClientError

from client_support import (
    AGAINST,
    IS_DASK,
    SOON,
    add,
    addresses,
    client_class,
    connect,
    double,
    inc,
    make_in_process_client,
    note,
    pass_gate,
)
from waiting import until


def test_a_client_closes_with_its_block(new_client):
    with new_client(workers=1) as client:
        assert client.status == "running"
        assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert client.status == "closed"


@pytest.mark.skipif(AGAINST != "treadle", reason="it is about treadle.install")
def test_a_client_and_an_installation_end_in_any_order(new_client):
    import treadle

    treadle.install()
    client = new_client(workers=1)
    treadle.uninstall()
    assert dask.config.get("scheduler") == "dask.distributed"
    client.close()
    assert dask.config.get("scheduler", None) is None

    treadle.install()
    new_client(workers=1).close()
    assert dask.config.get("scheduler") == "treadle"
    treadle.uninstall()
    assert dask.config.get("scheduler", None) is None


class Doubling(Client):
    """A client of a library, as that of ``prefect-dask``."""

    def submit(self, function, *args, **kwargs):
        return super().submit(lambda *args: 2 * function(*args), *args, **kwargs)


@pytest.mark.skipif(AGAINST != "treadle", reason="it is about Treadle's clusters")
def test_a_client_of_distributed_is_treadles_where_its_scheduler_is():
    """Libraries make clients themselves, of what they are given."""
    import treadle

    with treadle.LocalCluster(processes=False, n_workers=1) as cluster:
        address = cluster.scheduler_address
        for there in (cluster, address):
            with Client(there, set_as_default=False) as client:
                assert type(client) is treadle.Client
                assert client.submit(inc, 1).result(SOON) == 2
        with dask.config.set({"scheduler-address": address}), Client() as client:
            assert type(client) is treadle.Client
        with Doubling(address, set_as_default=False) as client:
            assert isinstance(client, treadle.Client)
            assert type(client).__name__ == "Doubling"
            assert client.submit(inc, 1).result(SOON) == 4
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as dasks,
        Client(dasks, set_as_default=False) as client,
    ):
        assert type(client) is Client


@pytest.mark.skipif(AGAINST != "treadle", reason="it is about Treadle's clusters")
def test_a_client_of_distributed_where_treadle_was_not_imported_is_refused_at_once():
    import treadle

    # In a process of its own: distributed's client is not closed then, and whichever thread collects
    # it waits for its loop.
    script = """
    import os, sys, distributed
    try:
        distributed.Client(sys.argv[1], timeout=100)
    except (NotImplementedError, RuntimeError) as error:
        os.write(1, str(error).encode())
        os._exit(0)
    """
    with treadle.LocalCluster(processes=False) as cluster:
        command = [sys.executable, "-c", textwrap.dedent(script), cluster.scheduler_address]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=True)
    assert "treadle.Client" in ran.stdout


def test_closing_twice(new_client):
    client = new_client(workers=1)
    client.close()
    client.close()
    assert client.status == "closed"


def test_a_closed_client_refuses_calls(new_client):
    client = new_client(workers=1)
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    client.close()
    with pytest.raises(ClosedClientError, match="Client is closed"):
        client.submit(inc, 2)
    with pytest.raises(ClosedClientError):
        client.map(inc, [1, 2])
    with pytest.raises(ClosedClientError):
        client.compute(delayed(inc)(1))


def test_futures_of_a_closed_client_are_cancelled(new_client, gate):
    client = new_client(workers=1)
    finished = client.submit(inc, 1)
    wait(finished, timeout=SOON)
    pending = client.submit(pass_gate, gate)
    client.close()
    assert finished.status == "cancelled"
    assert pending.cancelled()


def test_a_closed_client_says_so_in_its_repr(new_client):
    client = new_client(workers=1)
    client.close()
    assert "No scheduler connected" in repr(client)


@pytest.mark.skipif(IS_DASK, reason="how Treadle's client is called")
@pytest.mark.parametrize("operation", ["observe", "begun-anew", "event", "unknown"])
def test_a_call_may_come_while_another_thread_closes_the_client(operation):
    from treadle.client._handlers import Handlers
    from treadle.common import _calls

    class Connection:
        def answer(self, *_answer):
            raise ConnectionError("it was closed here")

    class Client:
        _topics, _event = (), None
        _event_handlers = {}  # noqa: RUF012

        def __init__(self):
            self.connections = [Connection()]

        @property
        def _connection(self):
            """The connection, once: it is taken away then."""
            return self.connections.pop() if self.connections else None

        def _in_loop(self, *_call):
            pass

    argument = {"submissions": True}
    if operation != "observe":
        argument = _calls.pack({"topic": "t", "event": 1, "reason": "it was killed"})
    client = Client()
    Handlers(client).on_call(1, "sidecar", operation, argument)
    assert client.connections == []


def test_the_processes_end_with_their_client(new_client, eventually):
    client = new_client()
    processes = list(client.run(os.getpid).values())
    client.close()

    def gone(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(lambda: all(gone(pid) for pid in processes))


@pytest.mark.skipif(AGAINST != "treadle", reason="how Treadle starts processes")
def test_ctrl_c_is_for_the_client_alone(new_client):
    """Workers are of another process group; from Python 3.11 on, of the same session."""
    for pid in new_client().run(os.getpid).values():
        assert os.getpgid(pid) == pid
        assert (os.getsid(pid) == os.getsid(0)) == (sys.version_info >= (3, 11))


def test_closing_one_client_leaves_the_other_its_data(client, second_client):
    theirs = second_client.submit(inc, 1, key="shared-key")
    wait_for(theirs)
    mine = client.submit(inc, 1, key="shared-key")
    assert mine.result(timeout=SOON) == 2
    second_client.close()
    assert mine.result(timeout=SOON) == 2
    assert client.submit(double, mine).result(timeout=SOON) == 4


def wait_for(future):
    future.client.gather(future)


def test_data_goes_with_the_last_client_that_wants_it(client, second_client, eventually):
    future = second_client.submit(inc, 1, key="only-theirs")
    wait_for(future)
    assert "only-theirs" in client.who_has()
    second_client.close()
    eventually(lambda: "only-theirs" not in client.who_has())


def test_unfinished_tasks_of_a_client_that_closed_are_dropped(client, second_client, eventually):
    future = second_client.submit(inc, 1, workers=["tcp://127.0.0.1:9"], key="never-runs")
    eventually(lambda: "never-runs" in client.who_has())
    second_client.close()
    eventually(lambda: "never-runs" not in client.who_has())
    assert future.cancelled()


def test_two_clients_share_a_key(client, second_client, gate):
    mine = client.submit(note, gate, "ran", 5, key="shared-key")
    assert mine.result(timeout=SOON) == 5
    theirs = second_client.submit(note, gate, "ran", 5, key="shared-key")
    assert theirs.result(timeout=SOON) == 5
    mine.release()
    del mine
    assert theirs.result(timeout=SOON) == 5
    assert gate.arrivals() == ["ran"]


def test_many_clients(client):
    clients = [connect(client, set_as_default=False) for _ in range(10)]
    try:
        futures = [c.submit(add, i, 1, pure=False) for i, c in enumerate(clients)]
        assert [f.result(timeout=SOON) for f in futures] == list(range(1, 11))
    finally:
        for c in clients:
            c.close()
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_clients_have_names_of_their_own(client, second_client):
    assert client.id != second_client.id
    assert client.id.startswith(type(client).__name__)
    named = connect(client, name="my-name", set_as_default=False)
    assert "my-name" in named.id
    named.close()


def test_an_address_takes_no_arguments_of_a_cluster(client):
    with pytest.raises(ValueError, match="Unexpected keyword arguments"):
        connect(client, no_such_argument=1)
    with pytest.raises(ValueError, match=r"Unexpected keyword arguments: \['n_workers'\]"):
        connect(client, n_workers=1)


def test_an_address_is_a_string():
    with pytest.raises(TypeError, match="Scheduler address must be a string"):
        client_class()(123)


def test_nobody_listens():
    prefix = "tcp" if client_class() is Client else "treadle"
    with pytest.raises(OSError):  # noqa: PT011
        client_class()(f"{prefix}://127.0.0.1:9", timeout=0.5)


def test_the_newest_client_is_the_default_one(client, new_client):
    newer = new_client(workers=1)
    assert default_client() is newer
    assert get_client() is newer
    newer.close()
    assert default_client() is client


def test_a_client_may_leave_the_default_alone(client, second_client):
    assert default_client() is client
    assert second_client is not client


def test_as_current_is_for_its_block_only(client, second_client):
    assert Client.current() is client
    with second_client.as_current():
        assert Client.current() is second_client
        assert get_client() is second_client
        with client.as_current():
            assert Client.current() is client
        assert Client.current() is second_client
    assert Client.current() is client


def test_without_the_global_client_there_is_no_current_one(client, second_client):
    with pytest.raises(ValueError, match="as_current"):
        Client.current(allow_global=False)
    with second_client.as_current():
        assert Client.current(allow_global=False) is second_client


def test_as_current_sends_computations_to_its_client(client, second_client):
    with second_client.as_current():
        x = delayed(inc)(1).persist()
        [future] = distributed.futures_of(x)
        assert future.client is second_client
    assert second_client.gather(future) == 2


def test_dask_computes_on_the_default_client(client):
    def here():
        return distributed.get_worker().address

    assert delayed(here)().compute() in addresses(client)
    assert dask.compute(delayed(inc)(1), delayed(inc)(2)) == (2, 3)


def test_other_schedulers_are_still_there(client):
    assert delayed(os.getpid)().compute(scheduler="sync") == os.getpid()
    with dask.config.set(scheduler="threads"):
        assert delayed(os.getpid)().compute() == os.getpid()
    assert delayed(os.getpid)().compute(scheduler=client) != os.getpid()


def run_script(body):
    """Run a script of a user in a process of its own; its output."""
    here = Path(__file__).parent
    script = "from client_support import *\nif __name__ == '__main__':\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_after_closing_dask_is_as_before():
    output = run_script(
        """
        from dask import delayed
        from dask.base import get_scheduler
        from distributed import default_client

        with make_in_process_client() as client:
            assert default_client() is client
            assert get_scheduler() is not None
        try:
            default_client()
        except ValueError as error:
            assert "No clients found" in str(error)
            print("none")
        assert get_scheduler() is None
        assert delayed(inc)(1).compute() == 2
        """
    )
    assert output == "none\n"


def test_a_script_that_never_closes_its_client_ends():
    output = run_script(
        """
        client = make_client(workers=1)
        future = client.submit(inc, 1)
        print(future.result(timeout=SOON))
        """
    )
    assert output == "2\n"


def test_functions_of_the_main_module_are_sent_by_value():
    output = run_script(
        """
        def twice(x):
            return helper(x) * 2

        def helper(x):
            return x + 1

        with make_client(workers=1) as client:
            print(client.submit(twice, 1).result(timeout=SOON))
        """
    )
    assert output == "4\n"


def test_modules_beside_the_script_can_be_imported_by_workers():
    # client_support is in the directory of the script, which is in no search path of Python's.
    output = run_script(
        """
        with make_client(workers=1) as client:
            print(client.submit(inc, 1).result(timeout=SOON), inc.__module__)
        """
    )
    assert output == "2 client_support\n"


def test_restart_gives_new_processes_and_forgets_everything(fresh_client, eventually):
    future = fresh_client.submit(inc, 1)
    wait(future, timeout=SOON)
    before = set(fresh_client.run(os.getpid).values())
    fresh_client.restart()
    assert future.cancelled()
    with pytest.raises(distributed.CancelledError, match="scheduler-restart"):
        future.result(timeout=SOON)
    assert len(addresses(fresh_client)) == 2
    assert before.isdisjoint(fresh_client.run(os.getpid).values())
    eventually(lambda: not fresh_client.who_has())
    assert fresh_client.submit(inc, 1).result(timeout=SOON) == 2


def test_restart_stops_what_runs(fresh_client, gate, eventually):
    futures = fresh_client.map(pass_gate, [gate] * 4, pure=False)
    eventually(lambda: gate.arrived(2))
    fresh_client.restart()
    assert all(f.cancelled() for f in futures)
    assert fresh_client.submit(inc, 1).result(timeout=SOON) == 2
    assert len(gate.arrivals()) == 2


def test_a_future_of_before_the_restart_does_no_harm_after_it(fresh_client, eventually):
    old = fresh_client.submit(inc, 1, key="same")
    wait(old, timeout=SOON)
    fresh_client.restart()
    new = fresh_client.submit(inc, 10, key="same")
    old.release()
    del old
    gc.collect()
    assert new.result(timeout=SOON) == 11
    assert fresh_client.submit(inc, new).result(timeout=SOON) == 12


def test_some_workers_are_restarted(fresh_client):
    first, second = addresses(fresh_client)
    before = fresh_client.run(os.getpid)
    found = fresh_client.restart_workers([first], timeout=SOON)
    assert found == {first: "OK"}
    fresh_client.wait_for_workers(2, timeout=SOON)
    after = set(fresh_client.run(os.getpid).values())
    assert before[second] in after
    assert before[first] not in after


def test_shutdown_ends_the_cluster(new_client, eventually):
    client = new_client(workers=1)
    [pid] = client.run(os.getpid).values()
    client.shutdown()
    assert client.status == "closed"

    def gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(gone)


def test_closing_does_not_wait_for_what_runs(new_client, gate, eventually):
    client = new_client(workers=1)
    future = client.submit(pass_gate, gate)
    eventually(gate.arrived)
    client.close()
    assert future.cancelled()
    assert client.status == "closed"


def test_in_process_tasks_run_in_this_process(in_process_client):
    assert in_process_client.submit(os.getpid, pure=False).result(timeout=SOON) == os.getpid()


def test_in_process_tasks_leave_no_threads_behind():
    def nested(x):
        threading.current_thread()
        with worker_client() as client:
            return client.submit(name, x).result()

    def name(x):
        return x, threading.current_thread().name

    def foreign():
        return {t for t in threading.enumerate() if isinstance(t, threading._DummyThread)}

    before = foreign()
    with make_in_process_client() as client:
        assert [x for x, _ in client.gather(client.map(nested, range(4)))] == [0, 1, 2, 3]
    until(lambda: not foreign() - before, lambda: str(foreign()))


def test_in_process_client_runs_the_same_calls(in_process_client):
    x = in_process_client.submit(inc, 1)
    ys = in_process_client.map(add, [1, 2], [x, x])
    assert in_process_client.gather(ys) == [3, 4]
    assert in_process_client.compute(delayed(inc)(x)).result(timeout=SOON) == 3
    assert in_process_client.gather(in_process_client.scatter([1, 2])) == [1, 2]
    assert sum(in_process_client.nthreads().values()) == 2


def test_in_process_tasks_run_at_the_same_time(in_process_client, gate, eventually):
    futures = in_process_client.map(pass_gate, [gate] * 2, pure=False)
    eventually(lambda: gate.arrived(2))
    gate.open()
    wait(futures, timeout=SOON)


def test_in_process_errors(in_process_client):
    future = in_process_client.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.result(timeout=SOON)


def test_in_process_nested_computations(in_process_client):
    def top(depth):
        with distributed.worker_client() as c:
            return c.submit(inc, depth).result(timeout=SOON)

    assert in_process_client.submit(top, 5).result(timeout=SOON) == 6
