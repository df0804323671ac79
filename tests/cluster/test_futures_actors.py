"""Actors: objects that live on a worker."""

from __future__ import annotations

import asyncio
import os
import signal

import distributed
import pytest
from distributed import Actor, BaseActorFuture, as_completed, get_client, get_worker, wait

from client_support import SOON, pass_gate


class Counter:
    n = 0

    def __init__(self, start=0):
        self.n = start

    def increment(self, by=1):
        self.n += by
        return self.n

    def fail(self):
        raise ValueError("the counter failed")

    def where(self):
        return get_worker().address

    def process(self):
        return os.getpid()

    async def increment_slowly(self):
        await asyncio.sleep(0)
        self.n += 1
        return self.n

    def nothing(self):
        pass

    def add_all(self, other):
        return [other.increment().result() for _ in range(2)]


class Broken:
    def __init__(self):
        raise ValueError("cannot be made")


def test_an_actor_keeps_its_state(client):
    future = client.submit(Counter, actor=True)
    counter = future.result(timeout=SOON)
    assert isinstance(counter, Actor)
    assert [counter.increment().result(timeout=SOON) for _ in range(3)] == [1, 2, 3]


def test_actors_is_another_word_for_actor(client):
    counter = client.submit(Counter, actors=True).result(timeout=SOON)
    assert isinstance(counter, Actor)


def test_arguments_of_the_class(client):
    counter = client.submit(Counter, start=10, actor=True).result(timeout=SOON)
    assert counter.increment(by=5).result(timeout=SOON) == 15


def test_methods_return_futures(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    future = counter.increment()
    assert isinstance(future, BaseActorFuture)
    assert future.result(timeout=SOON) == 1
    assert future.result(timeout=SOON) == 1
    assert future.done()
    assert repr(future) == "<ActorFuture>"


def test_a_method_that_returns_none(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    assert counter.nothing().result(timeout=SOON) is None


def test_attributes(client):
    counter = client.submit(Counter, 7, actor=True).result(timeout=SOON)
    assert counter.n == 7
    counter.increment().result(timeout=SOON)
    assert counter.n == 8


def test_unknown_names(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    with pytest.raises(AttributeError):
        counter.no_such_method  # noqa: B018


def test_names_are_listed(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    assert {"increment", "fail", "n"} <= set(dir(counter))


def test_repr_and_key(client):
    future = client.submit(Counter, actor=True, key="my-counter")
    counter = future.result(timeout=SOON)
    assert repr(counter) == "<Actor: Counter, key=my-counter>"
    assert counter.key == "my-counter"


def test_errors_of_methods(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    with pytest.raises(ValueError, match="the counter failed"):
        counter.fail().result(timeout=SOON)
    assert counter.increment().result(timeout=SOON) == 1


def test_errors_of_the_class(client):
    future = client.submit(Broken, actor=True)
    with pytest.raises(ValueError, match="cannot be made"):
        future.result(timeout=SOON)


def test_actors_are_never_pure(client):
    a = client.submit(Counter, actor=True)
    b = client.submit(Counter, actor=True)
    assert a.key != b.key
    first, second = client.gather([a, b])
    first.increment().result(timeout=SOON)
    assert second.increment().result(timeout=SOON) == 1


def test_coroutine_methods(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    assert counter.increment_slowly().result(timeout=SOON) == 1


def test_an_actor_lives_where_it_was_asked_to(client, workers):
    for address in workers:
        counter = client.submit(Counter, actor=True, workers=[address]).result(timeout=SOON)
        assert counter.where().result(timeout=SOON) == address


def test_a_method_runs_in_the_process_of_its_worker(client, workers):
    counter = client.submit(Counter, actor=True, workers=workers[:1]).result(timeout=SOON)
    assert counter.process().result(timeout=SOON) == client.run(os.getpid)[workers[0]]


def test_many_calls_in_flight(client):
    counter = client.submit(Counter, actor=True).result(timeout=SOON)
    futures = [counter.increment() for _ in range(50)]
    assert sorted(f.result(timeout=SOON) for f in futures) == list(range(1, 51))
    assert counter.n == 50


def test_an_actor_is_an_argument_of_tasks(client):
    future = client.submit(Counter, actor=True)
    counter = future.result(timeout=SOON)

    def use(counter, by):
        return counter.increment(by).result()

    tasks = [client.submit(use, counter, 1, pure=False) for _ in range(4)]
    assert sorted(client.gather(tasks)) == [1, 2, 3, 4]
    assert client.submit(use, future, 10).result(timeout=SOON) == 14


def test_several_actors_are_mapped(client):
    futures = client.map(Counter, [10, 20], actor=True)
    counters = client.gather(futures)
    found = [c.increment() for c in counters]
    assert [f.result(timeout=SOON) for f in found] == [11, 21]


def test_an_actor_calls_another(client):
    a = client.submit(Counter, actor=True).result(timeout=SOON)
    b = client.submit(Counter, 100, actor=True).result(timeout=SOON)
    assert a.add_all(b).result(timeout=SOON) == [101, 102]


def test_an_actor_made_in_a_task(client):
    def f():
        counter = get_client().submit(Counter, 5, actor=True).result()
        return counter.increment().result()

    assert client.submit(f, pure=False).result(timeout=SOON) == 6


def test_a_timeout_of_a_method(client, gate):
    class Slow:
        def wait(self, gate):
            return pass_gate(gate, 5)

    slow = client.submit(Slow, actor=True).result(timeout=SOON)
    future = slow.wait(gate)
    with pytest.raises(distributed.TimeoutError):
        future.result(timeout=0.1)
    assert not future.done()
    gate.open()
    assert future.result(timeout=SOON) == 5


def test_an_actor_is_let_go_with_its_future(client, eventually):
    future = client.submit(Counter, actor=True)
    counter = future.result(timeout=SOON)
    key = future.key
    assert key in client.who_has()
    del future, counter
    eventually(lambda: key not in client.who_has())


def test_the_future_of_an_actor_is_a_future(client):
    future = client.submit(Counter, actor=True)
    wait(future, timeout=SOON)
    assert future.status == "finished"
    assert future.type is Counter
    assert list(as_completed([future])) == [future]


def test_a_second_client_uses_an_actor(client, second_client):
    future = client.submit(Counter, actor=True, key="shared-counter")
    counter = future.result(timeout=SOON)
    counter.increment().result(timeout=SOON)

    def use(counter):
        return counter.increment().result()

    client.publish_dataset(counter=future)
    theirs = second_client.get_dataset("counter")
    assert second_client.submit(use, theirs).result(timeout=SOON) == 2
    client.unpublish_dataset("counter")


def test_a_lost_worker_is_an_error(fresh_client, eventually):
    client = fresh_client
    first = next(iter(client.nthreads()))
    future = client.submit(Counter, actor=True, workers=[first])
    counter = future.result(timeout=SOON)
    os.kill(counter.process().result(timeout=SOON), signal.SIGKILL)
    eventually(lambda: first not in client.nthreads())
    with pytest.raises((RuntimeError, OSError, ValueError)):
        counter.increment().result(timeout=SOON)


def test_a_worker_with_an_actor_is_not_retired(fresh_client):
    client = fresh_client
    first = next(iter(client.nthreads()))
    counter = client.submit(Counter, actor=True, workers=[first]).result(timeout=SOON)
    assert dict(client.retire_workers([first])) == {}
    assert first in client.nthreads()
    assert counter.increment().result(timeout=SOON) == 1
