"""Functions that were sent to the cluster once: they do not stay for ever."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest

from client_support import AGAINST, SOON
from process_support import Process
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it reads Treadle's metrics")

# As many may stay although no task uses them, and as many more until the next look.
FEW = 2048


def made(number: int) -> Callable[[int], int]:
    """A function of its own for each number."""
    function: Callable[[int], int] = eval(f"lambda x: x + {number}")
    return function


def functions() -> int:
    """How many functions without a name are in this process."""
    gc.collect()
    everything = gc.get_objects()
    return sum(isinstance(o, types.FunctionType) and o.__name__ == "<lambda>" for o in everything)


def definitions(scheduler: Process) -> int:
    lines = scheduler.page("/metrics").splitlines()
    [count] = (line.split()[1] for line in lines if line.startswith("treadle_definitions "))
    return int(float(count))


def use(client: Any, numbers: range) -> None:
    futures = [client.submit(made(number), 1, pure=False) for number in numbers]
    assert client.gather(futures) == [1 + number for number in numbers]


def test_functions_that_are_used_once_do_not_stay(start, join):
    scheduler = start("scheduler", "--port", "0")
    assert start("worker", scheduler.address, "--nthreads", "2").address
    client = join(scheduler)
    before = client.run(functions)
    for first in range(0, 20_000, 500):
        use(client, range(first, first + 500))
    until(lambda: definitions(scheduler) < FEW, "the scheduler forgets them")
    [[worker, count]] = before.items()
    until(lambda: client.run(functions)[worker] < count + FEW, "so does the worker")
    # What was forgotten is sent again.
    use(client, range(10))


def test_functions_are_forgotten_while_several_threads_submit_them(start, join):
    """A number that the scheduler takes back may be in a batch that is about to be sent."""
    scheduler = start("scheduler", "--port", "0")
    assert start("worker", scheduler.address, "--nthreads", "2").address
    client = join(scheduler)
    failed: list[BaseException] = []
    threads = 4
    barrier = Barrier(threads)

    def work() -> None:
        barrier.wait(SOON)
        try:
            for _ in range(3):
                # The same functions in all threads, and again when they were forgotten.
                for first in range(0, 2_000, 100):
                    use(client, range(first, first + 100))
        except BaseException as error:
            failed.append(error)

    together = [Thread(target=work) for _ in range(threads)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join(4 * SOON)
    assert not failed
    assert not any(thread.is_alive() for thread in together)
    until(lambda: definitions(scheduler) < FEW, "the scheduler forgets them")
