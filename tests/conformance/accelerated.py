"""A pytest plugin that runs tests of shuffles on distributed's own clusters, which Treadle accelerates.

With `-p forced_p2p`, the client that all tests share is of an accelerated cluster. A test of distributed's
that has a cluster of its own (`gen_cluster`) gets that accelerated: `-p distributed_shuffles` finds them in
a checkout of distributed.

The shuffles that begin are counted ([counted.py](counted.py)); there are no calls to count.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import distributed
import distributed.utils_test
import pytest

import counted
import treadle
from treadle.hosting._p2p_scheduler import HostedShuffles

# Schedulers are in this process.
_shuffles = itertools.count()
_own = HostedShuffles._begin


async def _begin(self: HostedShuffles, *args: Any) -> None:
    await _own(self, *args)
    next(_shuffles)


HostedShuffles._begin = _begin  # type: ignore[method-assign]


def accelerated(make: Callable[[], Any]) -> Callable[[], Any]:
    @functools.cache
    def client() -> Any:
        made = make()
        treadle.accelerate(made)
        return made

    return client


def gen_cluster(*args: Any, **options: Any) -> Callable[[Any], Any]:
    """`distributed.utils_test.gen_cluster`, with an accelerated cluster if there is a client."""
    decorate = _gen_cluster(*args, **options)
    if not options.get("client"):
        return decorate

    def decorated(test: Any) -> Any:
        @functools.wraps(test)
        async def run(client: Any, *rest: Any, **named: Any) -> Any:
            if client.scheduler_info(n_workers=-1)["workers"]:
                await treadle.accelerate(client)
            try:
                return await test(client, *rest, **named)
            finally:
                if client.status == "running":
                    try:
                        await treadle.decelerate(client)
                    except RuntimeError as error:
                        if "is not accelerated" not in str(error):
                            raise

        return decorate(run)

    return decorated


_gen_cluster = distributed.utils_test.gen_cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    counted.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    distributed.utils_test.gen_cluster = gen_cluster
    if (forced := sys.modules.get("forced_p2p")) is not None:
        forced.client = accelerated(forced.client)
    counts = counted.Counts(config, {"shuffles": _shuffles})
    config.pluginmanager.register(counts, "treadle_counts")
