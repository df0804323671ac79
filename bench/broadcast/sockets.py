"""Trees of depths 0 to 5 on sockets, beside the tree that the planner takes: 8 … 512 engines, 8 B … 20 MB.

The engines are the workers' own native code on hosts of their own, as far as any node knows (``engines.simulated``), on
the cores of this machine: the times are the machine's, and only what is pushed in the same minute is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import engines
from figures import Figure, interleave, time_of
from plots import unit

COUNTS = (8, 32, 128, 512)
SIZES = (8, 32 << 10, 2 << 20, 20 << 20)
PLANNER = "the planner's"
# The planner is to be no slower than the best depth by more than this.
MOST = 1.2
# Bytes that all engines together get in a push: beyond, a push takes many seconds here.
TOGETHER = 3 << 30


def measure(quick: bool) -> Iterator[Figure]:
    for count in COUNTS[:1] if quick else COUNTS:
        with engines.simulated(count) as (client, _):
            trees = {PLANNER: client.broadcast_view()}
            trees |= {f"depth {n}": client.broadcast_view(depth=n) for n in range(6)}
            for size in SIZES:
                if count * size <= TOGETHER:
                    yield of_size(trees, count, size, 3 if quick else 7)


def of_size(trees: dict[str, Any], count: int, size: int, rounds: int) -> Figure:
    payload = {"payload": bytes(size)}
    turns = {name: pushing(view, payload) for name, view in trees.items()}
    samples = interleave(turns, rounds)
    depths = [name for name in trees if name != PLANNER]
    best = min(depths, key=samples.median)
    ratio = samples.ratio(PLANNER, best)
    return Figure(
        f"on sockets: {unit(size) if size >= 1024 else f'{size} B'} to {count} engines, the planner over the best depth",
        time_of(samples.median(PLANNER)),
        ", ".join(f"{name}: {time_of(samples.median(name))}" for name in depths),
        f"{ratio:.2f} × {best}",
        f"≤ {MOST} ×",
        ratio <= MOST,
    )


def pushing(view: Any, payload: dict[str, bytes]) -> Callable[[], float]:
    def push() -> float:
        start = time.perf_counter()
        view.push(payload, block=True)
        return time.perf_counter() - start

    return push
