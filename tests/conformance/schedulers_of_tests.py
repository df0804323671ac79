"""The scheduler `s` of a coroutine test: Treadle's Python side of it, and a skip for all that it has not."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from distributed import Scheduler, Status

from treadle.client import _gather
from treadle.client._state import State
from treadle.errors._unserved import is_public
from treadle.scheduler._standin import SchedulerStandIn

_there: weakref.WeakSet[SchedulerOfTest] = weakref.WeakSet()


class SchedulerOfTest(SchedulerStandIn):
    """What plugins get as the scheduler, and a test as `s`: one object, as with distributed."""

    # `wait_for_state` asks for this.
    __class__ = property(lambda _: Scheduler)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if is_public(Scheduler, name):
            pytest.skip(f"the inside of distributed's Scheduler: {name}")
        return SchedulerStandIn.__getattr__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if is_public(Scheduler, name) and name not in vars(self):
            pytest.skip(f"the inside of distributed's Scheduler: {name} is set")
        SchedulerStandIn.__setattr__(self, name, value)

    def validate_state(self) -> None:
        """Do nothing."""


def scheduler_of(cluster: Any) -> SchedulerOfTest:
    """The scheduler of a cluster in this process."""
    real = cluster._scheduler.sidecar.scheduler
    object.__setattr__(real, "__class__", SchedulerOfTest)
    real.treadle_cluster = cluster
    _there.add(real)
    return real


def _sync() -> None:
    """As with distributed: when a client knows of a task, so do plugins, spans and groups."""
    for scheduler in _there:
        if scheduler.status is Status.running:
            scheduler.steps.sync()


async def _wait_in_order(state: State, timeout: float | None = None) -> None:
    await _wait(state, timeout)
    _sync()


def _waited_in_order(futures: Any) -> Any:
    _sync()
    return _waited(futures)


_wait, _waited = State.wait, _gather.waited
State.wait = _wait_in_order  # type: ignore[method-assign]
_gather.waited = _waited_in_order
