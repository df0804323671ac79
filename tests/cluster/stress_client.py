"""A client under threads and signals: whatever they do, every future ends, and nothing is left.

Threads submit, map, compute graphs, release, cancel, gather and wait, all on the same few keys, while
signals interrupt the main thread, which does the same, anywhere. After each round:

* every future that is held ends, and its value is right;
* every callback was called, once;
* the client still works, and has not forgotten a future that somebody holds;
* when all are released, the client and the scheduler forget all keys.

``python tests/cluster/stress_client.py --minutes 60 --seed 1`` runs rounds for an hour. A failure
names the seed of its round.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import as_completed, wait
from distributed.client import FutureCancelledError, FuturesCancelledError

import treadle
from waiting import until

# Seconds in which what has to happen happens.
SOON = 60.0
# How many different calls there are of each kind.
KEYS = 12
ENDED = ("finished", "error", "cancelled")
# What operations may raise where other threads cancel and release what they work on.
EXPECTED = (
    FutureCancelledError,
    FuturesCancelledError,
    ZeroDivisionError,
    KeyError,
    TimeoutError,
)


def power(x: int) -> int:
    if x % 5 == 0:
        raise ZeroDivisionError(x)
    return x**3


def large(x: int) -> bytes:
    """A value that stays at its worker."""
    return bytes([x]) * 100_000


def total(*values: Any) -> int:
    return sum(value if isinstance(value, int) else len(value) for value in values)


class Interrupted(KeyboardInterrupt):
    """What the signal handler raises."""


class Signals:
    """Interrupts what the main thread does, at random times."""

    def __init__(self, seed: int, mean: float) -> None:
        self.random = random.Random(seed)
        self.mean = mean
        # How often it may still interrupt.
        self.left = 0
        self.count = 0
        self.arrive = False

    def raise_it(self, number: int, _: Any) -> None:
        # One that came before the end and is handled after it must not begin anew.
        if number == signal.SIGALRM and self.arrive:
            signal.setitimer(signal.ITIMER_REAL, self._pause())
        if self.left > 0:
            self.left -= 1
            self.count += 1
            raise Interrupted

    def _pause(self) -> float:
        return max(self.random.expovariate(1 / self.mean), 1e-5)

    def interrupt(self, call: Callable[[], None]) -> None:
        """Call something, and interrupt it once or twice, or not at all."""
        try:
            try:
                self.left = self.random.randrange(1, 3) if INTERRUPTS else 0
                call()
            except Interrupted:
                pass
            self.left = 0
        except Interrupted:
            pass

    @contextmanager
    def arriving(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.raise_it) for number in SIGNALS}
        try:
            self.arrive = True
            signal.setitimer(signal.ITIMER_REAL, self._pause())
            yield
        finally:
            self.arrive = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)


SIGNALS = (signal.SIGALRM, signal.SIGINT)

# Before Python 3.11, an exception of a signal handler can come between the end of a `with` block and what
# ends it (bpo-29988): a lock stays taken, whoever wrote the block.
INTERRUPTS = sys.version_info >= (3, 11)


class Actor:
    """One thread's part of a round."""

    def __init__(self, client: treadle.Client, seed: int, called: Counter[int]) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.held: list[tuple[Any, Any]] = []
        self.called = called
        self.expected: Counter[int] = Counter()
        self.steps = 0
        self.interrupted = False
        self.errors: list[BaseException] = []

    # Each future is held with its value; an error is its value, too.

    def submit(self) -> None:
        x = self.random.randrange(1, KEYS)
        if self.random.random() < 0.3:
            self.held.append((self.client.submit(large, x), large(x)))
        else:
            self.held.append((self.client.submit(power, x), power(x) if x % 5 else None))

    def chain(self) -> None:
        x, y = self.random.sample([1, 2, 3, 4, 6, 7], 2)
        inputs = [self.client.submit(power, x), self.client.submit(large, y)]
        future = self.client.submit(total, *inputs)
        self.held.append((future, x**3 + 100_000))

    def map(self) -> None:
        xs = self.random.choices(range(1, KEYS), k=self.random.randrange(1, 30))
        futures = self.client.map(power, xs)
        self.held += zip(futures, [power(x) if x % 5 else None for x in xs], strict=True)

    def graph(self) -> None:
        x = self.random.choice([1, 2, 3, 4])
        graph = {f"a-{x}": (power, x), f"b-{x}": (total, f"a-{x}", f"a-{x}")}
        assert self.client.get(graph, [f"b-{x}"]) == [2 * x**3]

    def scatter(self) -> None:
        x = self.random.randrange(1, KEYS)
        self.held.append((self.client.scatter(large(x)), large(x)))

    def release(self) -> None:
        if self.held:
            self.held.pop(self.random.randrange(len(self.held)))

    def release_explicitly(self) -> None:
        if self.held:
            future, _ = self.held.pop(self.random.randrange(len(self.held)))
            future.release()

    def cancel(self) -> None:
        if self.held:
            self.client.cancel(self.random.choice(self.held)[0])

    def result(self) -> None:
        if self.held:
            future, value = self.random.choice(self.held)
            check(future.result(timeout=SOON), value)

    def gather(self) -> None:
        some = self.random.sample(self.held, min(len(self.held), 5))
        found = self.client.gather([future for future, _ in some])
        for value, (_, expected) in zip(found, some, strict=True):
            check(value, expected)

    def completed(self) -> None:
        some = dict(self.held[-5:])
        with_results = self.random.random() < 0.5
        came = as_completed(some, with_results=with_results, raise_errors=False, timeout=SOON)
        for item in came:
            if with_results:
                future, value = item
                if isinstance(value, (int, bytes)):
                    check(value, some[future])
            else:
                assert item in some

    def wait(self) -> None:
        if self.held:
            wait([future for future, _ in self.held[-5:]], timeout=SOON)

    def callback(self) -> None:
        if self.held:
            future, _ = self.random.choice(self.held)
            number = self.random.getrandbits(60)

            def call(_: Any) -> None:
                self.called[number] += 1

            future.add_done_callback(call)
            # Now it was registered: it has to be called.
            self.expected[number] = 1

    def step(self) -> None:
        self.steps += 1
        operations: list[Callable[[], None]] = [
            *(self.submit, self.map, self.chain, self.release, self.release),
            *(self.release_explicitly, self.cancel, self.result, self.gather),
            *(self.completed, self.callback, self.wait, self.graph),
        ]
        # It goes through distributed's `sync`, which waits on a `threading.Condition`: that is not made
        # for exceptions of signal handlers.
        if not self.interrupted:
            operations.append(self.scatter)
        # Not `suppress`, which is Python: it would be interrupted instead.
        try:  # noqa: SIM105
            self.random.choice(operations)()
        except EXPECTED:
            pass
        while len(self.held) > 40:
            self.held.pop(0)

    def run(self, until: float) -> None:
        while time.monotonic() < until and not self.errors:
            try:
                self.step()
            except BaseException as error:
                self.errors.append(error)


def check(value: Any, expected: Any) -> None:
    if expected is None:
        raise AssertionError(f"a value {value!r:.50} of a task that fails")
    if value != expected:
        raise AssertionError(f"{value!r:.50} is not {expected!r:.50}")


def round_of(client: treadle.Client, seed: int, threads: int, seconds: float) -> dict[str, int]:
    """Do it once. Raises an AssertionError that says what is wrong."""
    called: Counter[int] = Counter()
    signals = Signals(seed, 10 ** random.Random(seed).uniform(-4, -2))
    actors = [Actor(client, 1000 * seed + number, called) for number in range(threads + 1)]
    actors[0].interrupted = True
    end = time.monotonic() + seconds
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    others = [threading.Thread(target=actor.run, args=(end,)) for actor in actors[1:]]
    try:
        for thread in others:
            thread.start()
        with signals.arriving():
            while time.monotonic() < end:
                signals.interrupt(actors[0].step)
        for thread in others:
            thread.join(2 * SOON)
            if thread.is_alive():
                faulthandler.dump_traceback()
                raise AssertionError("a thread waits for what has to come")
    finally:
        sys.setswitchinterval(before)
    for actor in actors:
        for error in actor.errors:
            raise AssertionError("an operation failed") from error
    judge(client, actors)
    return {"steps": sum(actor.steps for actor in actors), "interrupts": signals.count}


def wait_for(condition: Callable[[], bool], instead: Callable[[], str]) -> None:
    try:
        until(condition, instead, SOON)
    except AssertionError:
        faulthandler.dump_traceback()
        raise


def judge(client: treadle.Client, actors: list[Actor]) -> None:
    """Check what is true when all has come to rest."""
    held = [pair for actor in actors for pair in actor.held]
    wait_for(
        lambda: all(future.status in ENDED for future, _ in held),
        lambda: f"never end: {[f for f, _ in held if f.status not in ENDED]}",
    )
    for future, value in held:
        if future.status == "finished":
            check(future.result(timeout=SOON), value)
        elif future.status == "error" and value is not None:
            raise AssertionError(f"{future} failed: {future.exception()!r}")
    expected: Counter[int] = Counter()
    for actor in actors:
        expected += actor.expected
    called = actors[0].called
    wait_for(
        lambda: all(called[number] for number in expected),
        lambda: f"{sum(not called[number] for number in expected)} callbacks were not called",
    )
    assert set(called.values()) <= {1}, "a callback was called twice"
    assert client.submit(power, 3, pure=False).result(timeout=SOON) == 27
    held.clear()
    for actor in actors:
        actor.held.clear()
    future = None
    gc.collect()
    wait_for(lambda: not client.futures, lambda: f"not forgotten here: {client.futures}")
    wait_for(lambda: not client.who_has(), lambda: f"not forgotten there: {client.who_has()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--threads", type=int, default=4, help="beside the main thread")
    parser.add_argument("--round", type=float, default=3.0, help="seconds of a round")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    seed = options.seed
    sums: Counter[str] = Counter()
    with treadle.Client(workers=2, threads_per_worker=1) as client:
        while time.monotonic() < end:
            # Where even the main thread hangs.
            faulthandler.dump_traceback_later(options.round + 4 * SOON, exit=True)
            try:
                sums.update(round_of(client, seed, options.threads, options.round))
            except BaseException:
                print(f"seed {seed} failed, after {dict(sums)}", file=sys.stderr, flush=True)
                raise
            seed += 1
            if not seed % 20:
                print(f"{seed - options.seed} rounds, {dict(sums)}", flush=True)
    print(f"{seed - options.seed} rounds, {dict(sums)}")


if __name__ == "__main__":
    main()
