"""One build's side: ``turns.py PLANE`` names its workloads, then reads names and answers seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1]

Turn = Callable[[], float]


@contextmanager
def cluster() -> Iterator[dict[str, Turn]]:
    """Seconds a task, a step, a call, a computation: two workers of one thread."""
    import dask.array as da

    import clusters
    from latency import chain, round_trips
    from throughput import mapped

    with clusters.treadle() as client:
        first, second = sorted(client.scheduler_info()["workers"])

        def computed() -> float:
            array = da.ones((4000, 4000), chunks=(200, 200))
            start = time.perf_counter()
            (array + array.T).mean(axis=0).compute()
            return time.perf_counter() - start

        yield {
            "a task of `map`": lambda: 1 / mapped(client, 50_000),
            "a step of a chain, one worker": lambda: chain(client, 10_000, None),
            "a step of a chain, two workers": lambda: chain(client, 2_000, [first, second]),
            "`submit(…).result()`": lambda: round_trips(client, 500),
            "an array of 400 blocks": computed,
        }


@contextmanager
def transfer() -> Iterator[dict[str, Turn]]:
    """Seconds of 100 MB, and of a message there and back."""
    from network import LOOPBACK
    from program import Program
    from programs import python
    from streams import our_stream

    def seconds(rate: Callable[[], float]) -> float:
        return 100 / rate()

    with ExitStack() as stack:
        warm, new = (
            stack.enter_context(our_stream(LOOPBACK, into, 100, 8)) for into in ("warm", "new")
        )
        server = stack.enter_context(Program(python("ours.py", "serve", LOOPBACK.host)))
        command = python("ours.py", "latency", server.told()["address"])
        client = stack.enter_context(Program(command))

        def trip() -> float:
            return float(client.ask(concurrency=1, seconds=0.5)["p50"])

        yield {
            "100 MB, `recv_into` a warm array": lambda: seconds(warm.turn),
            "100 MB, `recv()` of a new array": lambda: seconds(new.turn),
            "1 KB there and back": trip,
        }


@contextmanager
def broadcast() -> Iterator[dict[str, Turn]]:
    """Seconds of a call of 16 engines."""
    import numpy as np

    import engines
    from notebook import nothing, seconds

    with engines.treadle(16) as client:
        view = client.direct_view()
        small, large = (np.random.default_rng(side).random((side, side)) for side in (64, 512))

        def push(value: Any) -> Turn:
            return lambda: seconds(lambda: view.push({"chunk": value}, block=True))

        yield {
            "an empty call to 16 engines": lambda: seconds(lambda: view.apply_sync(nothing)),
            "a push of 64² doubles": push(small),
            "a push of 512² doubles": push(large),
        }


def main() -> None:
    plane = sys.argv[1]
    sys.path += [str(BENCH), str(BENCH / plane)]
    with globals()[plane]() as turns:
        print(json.dumps(list(turns)), flush=True)
        for line in sys.stdin:
            seconds = turns[json.loads(line)["what"]]()
            print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
