"""`Queue` and `Variable`, from clients and from tasks."""

from __future__ import annotations

import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import distributed
import pytest
from distributed import Future, Queue, Variable, wait

from client_support import AGAINST, SOON, fail, inc, pass_gate


@pytest.fixture
def name():
    return f"name-{uuid.uuid4().hex}"


@pytest.fixture
def queue(client, name):
    queue = Queue(name)
    yield queue
    queue.close()


@pytest.fixture
def variable(client, name):
    variable = Variable(name)
    yield variable
    variable.delete()


# Queue


def test_first_in_first_out(queue):
    for i in range(5):
        queue.put(i)
    assert queue.qsize() == 5
    assert [queue.get(timeout=SOON) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert queue.qsize() == 0


def test_plain_data_passes(queue):
    # Lists come back as tuples from distributed; nothing here depends on it.
    for value in (None, True, 1.5, "text", b"bytes", (1, ("x", 2)), {"a": {"b": 1}}):
        queue.put(value)
        assert queue.get(timeout=SOON) == value


def test_futures_pass(client, queue):
    future = client.submit(inc, 1)
    queue.put(future)
    found = queue.get(timeout=SOON)
    assert isinstance(found, Future)
    assert found.key == future.key
    assert found.result(timeout=SOON) == 2


def test_a_queue_keeps_its_futures_alive(client, queue, eventually):
    future = client.submit(inc, 1, key="in-the-queue")
    wait(future, timeout=SOON)
    queue.put(future)
    del future
    client.submit(inc, 2).result(timeout=SOON)
    found = queue.get(timeout=SOON)
    assert found.result(timeout=SOON) == 2
    del found
    eventually(lambda: "in-the-queue" not in client.who_has())


def test_futures_that_failed_pass(client, queue):
    bad = client.submit(fail, "queued")
    wait(bad, timeout=SOON)
    queue.put(bad)
    found = queue.get(timeout=SOON)
    with pytest.raises(ValueError, match="queued"):
        found.result(timeout=SOON)


@pytest.fixture
def in_thread(monkeypatch):
    """Calls in a thread. That a key is known is not learnt from time that passes."""
    monkeypatch.setattr("treadle.scheduler._futures._PATIENCE", 100 * SOON)
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def test_pending_futures_pass(client, queue, gate, in_thread):
    future = client.submit(pass_gate, gate, 5)
    in_thread(queue.put, future).result(SOON)
    found = queue.get(timeout=SOON)
    assert not found.done()
    gate.open()
    assert found.result(timeout=SOON) == 5


def test_a_pending_future_is_put_once_its_task_is_there(client, queue, gate, in_thread):
    early = Future("submitted-later", client)
    put = in_thread(queue.put, early, timeout=SOON)
    with pytest.raises(FutureTimeoutError):
        put.result(0.2)
    future = client.submit(pass_gate, gate, 5, key="submitted-later")
    put.result(SOON)
    assert not queue.get(timeout=SOON).done()
    gate.open()
    assert future.result(timeout=SOON) == 5


def test_getting_times_out(queue):
    with pytest.raises(distributed.TimeoutError):
        queue.get(timeout=0.05)
    with pytest.raises(distributed.TimeoutError):
        queue.get(timeout="50 ms")


def test_a_full_queue(client, name):
    queue = Queue(name, maxsize=2)
    queue.put(1)
    queue.put(2)
    with pytest.raises(distributed.TimeoutError):
        queue.put(3, timeout=0.05)
    assert queue.qsize() == 2
    assert queue.get(timeout=SOON) == 1
    queue.put(3, timeout=SOON)
    assert [queue.get(timeout=SOON) for _ in range(2)] == [2, 3]
    queue.close()


def test_all_there_is_in_a_batch(queue):
    assert list(queue.get(batch=True)) == []
    for i in range(4):
        queue.put(i)
    assert list(queue.get(batch=True)) == [0, 1, 2, 3]


def test_a_batch_of_a_size(queue):
    for i in range(5):
        queue.put(i)
    assert list(queue.get(batch=2)) == [0, 1]
    assert list(queue.get(batch=3)) == [2, 3, 4]


def test_a_batch_of_a_size_has_no_timeout(queue):
    with pytest.raises(NotImplementedError, match="timeouts"):
        queue.get(batch=2, timeout=0.1)


def test_a_batch_of_futures(client, queue):
    futures = client.map(inc, range(3))
    for future in futures:
        queue.put(future)
    assert client.gather(list(queue.get(batch=True))) == [1, 2, 3]


def test_queues_of_one_name_are_one_queue(client, second_client, name):
    mine = Queue(name, client=client)
    theirs = Queue(name, client=second_client)
    mine.put("hello")
    assert theirs.get(timeout=SOON) == "hello"
    future = client.submit(inc, 1)
    mine.put(future)
    found = theirs.get(timeout=SOON)
    assert found.client is second_client
    assert found.result(timeout=SOON) == 2
    mine.close()
    theirs.close()


def test_somebody_who_waits_gets_it(queue):
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.get(timeout=SOON)))
    thread.start()
    queue.put(5)
    thread.join(SOON)
    assert got == [5]


def test_tasks_put_and_get(client, name):
    def produce(name, n):
        queue = Queue(name)
        for i in range(n):
            queue.put(i)

    def consume(queue, n):
        return [queue.get(timeout=SOON) for _ in range(n)]

    queue = Queue(name)
    produced = client.submit(produce, name, 10)
    consumed = client.submit(consume, queue, 10)
    assert consumed.result(timeout=SOON) == list(range(10))
    wait(produced, timeout=SOON)
    queue.close()


def test_a_task_submits_and_hands_over_its_future(client, queue):
    def f(queue):
        future = distributed.get_client().submit(inc, 41, key="handed-over")
        queue.put(future)

    done = client.submit(f, queue)
    found = queue.get(timeout=SOON)
    assert found.result(timeout=SOON) == 42
    wait(done, timeout=SOON)


def test_a_queue_passes_through_pickle(queue):
    queue.put(1)
    other = pickle.loads(pickle.dumps(queue))
    assert other.name == queue.name
    assert other.get(timeout=SOON) == 1


# Variable


def test_a_variable(variable):
    variable.set(1)
    assert variable.get(timeout=SOON) == 1
    assert variable.get(timeout=SOON) == 1
    variable.set("other")
    assert variable.get(timeout=SOON) == "other"


def test_an_unset_variable_times_out(variable):
    with pytest.raises(distributed.TimeoutError):
        variable.get(timeout=0.05)
    with pytest.raises(distributed.TimeoutError):
        variable.get(timeout="50 ms")


def test_somebody_who_waits_for_a_variable_gets_it(variable):
    got = []
    thread = threading.Thread(target=lambda: got.append(variable.get(timeout=SOON)))
    thread.start()
    variable.set(5)
    thread.join(SOON)
    assert got == [5]


@pytest.mark.skipif(AGAINST != "treadle", reason="it is about how Treadle does it")
def test_whoever_asks_while_a_variable_is_set_gets_it(client):
    got = []
    for number in range(300):
        one = distributed.Variable(f"one-{number}", client=client)
        thread = threading.Thread(target=lambda one=one: got.append(one.get(timeout=SOON)))
        thread.start()
        one.set(number)
        thread.join(SOON)
        one.delete()
    assert got == list(range(300))


def test_a_variable_of_a_future(client, variable):
    future = client.submit(inc, 1)
    variable.set(future)
    found = variable.get(timeout=SOON)
    assert found.key == future.key
    assert found.result(timeout=SOON) == 2


def test_a_variable_of_a_pending_future(client, variable, gate, in_thread):
    future = client.submit(pass_gate, gate, 5)
    in_thread(variable.set, future).result(SOON)
    found = variable.get(timeout=SOON)
    assert not found.done()
    gate.open()
    assert found.result(timeout=SOON) == 5


def test_a_variable_keeps_its_future_alive(client, variable, eventually):
    future = client.submit(inc, 1, key="in-the-variable")
    wait(future, timeout=SOON)
    variable.set(future)
    del future
    client.submit(inc, 2).result(timeout=SOON)
    assert variable.get(timeout=SOON).result(timeout=SOON) == 2
    variable.set("something else")
    eventually(lambda: "in-the-variable" not in client.who_has())


def test_a_variable_of_a_future_that_failed(client, variable):
    bad = client.submit(fail, "in a variable")
    wait(bad, timeout=SOON)
    variable.set(bad)
    found = variable.get(timeout=SOON)
    assert found.status == "error"
    with pytest.raises(ValueError, match="in a variable"):
        found.result(timeout=SOON)


def test_variables_of_one_name_are_one_variable(client, second_client, name):
    mine, theirs = Variable(name, client=client), Variable(name, client=second_client)
    mine.set(5)
    assert theirs.get(timeout=SOON) == 5
    theirs.set(second_client.submit(inc, 1))
    found = mine.get(timeout=SOON)
    assert found.client is client
    assert found.result(timeout=SOON) == 2
    mine.delete()


def test_a_deleted_variable_is_unset(client, name):
    variable = Variable(name)
    variable.set(1)
    variable.delete()
    client.run_on_scheduler(int)
    with pytest.raises(distributed.TimeoutError):
        Variable(name).get(timeout=0.5)


def test_a_variable_in_tasks(client, variable):
    def f(variable, name):
        value = variable.get(timeout=SOON)
        Variable(name).set(value + 1)
        return value

    variable.set(1)
    assert client.submit(f, variable, variable.name).result(timeout=SOON) == 1
    assert variable.get(timeout=SOON) == 2


def test_a_variable_tells_running_tasks_to_stop(client, variable, gate, eventually):
    def f(variable, gate):
        gate.arrive()
        n = 0
        while not variable.get(timeout=SOON):
            n += 1
        return "stopped"

    variable.set(False)
    future = client.submit(f, variable, gate)
    eventually(gate.arrived)
    variable.set(True)
    assert future.result(timeout=SOON) == "stopped"


def test_a_variable_passes_through_pickle(variable):
    variable.set(7)
    assert pickle.loads(pickle.dumps(variable)).get(timeout=SOON) == 7


def test_variables_without_a_name_are_different(client):
    assert Variable().name != Variable().name
