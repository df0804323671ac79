"""A pytest plugin for distributed's tests of its shuffles, which its wheel does not ship.

`--rootdir` is a checkout of distributed. Its tests run on the distributed that is installed. With
`-p treadle_distributed` before it, they run on Treadle. Then the helpers with which tests wait for a
state of a shuffle, or assert that nothing is left of it, ask Treadle.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import cloudpickle
import dask
import distributed.shuffle
import distributed.utils_test
import pytest

treadle_distributed: Any = sys.modules.get("treadle_distributed")
PATIENCE = 10.0


def _shuffles(scheduler: Any) -> Any:
    """The shuffles that run; none once the scheduler is closed."""
    answers: list[Any] = []
    connection = getattr(scheduler, "_real", scheduler)._connection
    if scheduler.status is distributed.Status.closed:
        return ()
    connection.call("", "shuffles", {}, lambda answer, _error: answers.append(answer))
    assert connection.wait(lambda: bool(answers), PATIENCE)
    return answers[0]


async def _until_nothing_is_left(server: Any, left: Any) -> None:
    until = time.monotonic() + PATIENCE
    while left(server):
        assert time.monotonic() < until, f"{server} has something of a shuffle"
        await asyncio.sleep(0.01)


async def assert_worker_cleanup(worker: Any, close: bool = False, **_options: Any) -> None:
    """In place of the helper of `test_shuffle.py`."""
    if close:
        await worker.close()
    else:
        await _until_nothing_is_left(
            worker, lambda worker: worker._native.shuffle_stats()["leftovers"]
        )


async def assert_scheduler_cleanup(scheduler: Any, **_options: Any) -> None:
    """In place of the helper of `test_shuffle.py`."""
    await _until_nothing_is_left(scheduler, lambda scheduler: _shuffles(scheduler))


async def wait_for_tasks_in_state(
    prefix: str, state: str, count: int, worker: Any, interval: float = 0.001
) -> None:
    """In place of the helper of `test_shuffle.py`: wait until a worker has ended so many tasks."""
    if state != "memory" or not hasattr(worker, "_native"):
        pytest.skip(f"the inside of distributed: tasks in state {state}")
    counted = "transfers" if prefix.endswith("transfer") else "reads"
    until = time.monotonic() + PATIENCE
    while worker._native.shuffle_stats()[counted] < count:
        assert time.monotonic() < until, f"{worker} has not ended {count} tasks {prefix}"
        await asyncio.sleep(interval)


async def wait_until_new_shuffle_is_initialized(scheduler: Any, **_options: Any) -> str:
    """In place of the helper of `test_shuffle.py`."""
    until = time.monotonic() + PATIENCE
    while not (running := _shuffles(scheduler)):
        assert time.monotonic() < until, "no shuffle runs"
        await asyncio.sleep(0.001)
    return str(running[0]["name"])


HELPERS = (
    assert_scheduler_cleanup,
    assert_worker_cleanup,
    wait_for_tasks_in_state,
    wait_until_new_shuffle_is_initialized,
)


def pytest_configure(config: pytest.Config) -> None:
    folder = config.rootpath / "distributed" / "shuffle"
    if not (folder / "tests").is_dir():
        raise pytest.UsageError(f"{config.rootpath} is not a checkout of distributed")
    distributed.shuffle.__path__.append(str(folder))
    # P2P is the default with distributed. Its tests begin with a copy of this configuration.
    settings = {"treadle.shuffle.tasks-below": 0, "treadle.rechunk.tasks-below": 0}
    dask.config.set(settings, config=distributed.utils_test.original_config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        # Workers in other processes cannot import it.
        cloudpickle.register_pickle_by_value(module)
        if treadle_distributed is not None:
            for helper in HELPERS:
                if hasattr(module, helper.__name__):
                    setattr(module, helper.__name__, helper)
