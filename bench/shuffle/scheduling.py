"""The scheduler's processor time for a task of a shuffle, beside one for an ordinary task.

The tasks in the place of those of the shuffle take as long: results of short ones share messages. They
rearrange rows meanwhile, as those do. The same tasks that sleep are measured, too: then the scheduler
finds its caches as it left them, and takes less.

A thread that expects a message soon looks for it again and again before it sleeps. That is time for
waiting, not for tasks: ``calm.c`` has the scheduler sleep instead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from distributed import wait

import clusters
import skeleton
import work
from figures import Figure, time_of
from program import compiled, processor_time
from sides import by, computed
from table import frame, shuffled

PARTS = 500
ROWS = 10_000
WARMING = 5  # rounds without pauses, which say how long a task of the shuffle takes
REST = 0.2  # seconds after each, for what the scheduler does when all is done


def measure(quick: bool) -> Iterator[Figure]:
    calm = {"LD_PRELOAD": compiled(Path(__file__).with_name("calm.c"), "-O2", "-shared", "-fPIC")}
    rounds = 5 if quick else 20
    with by("p2p"), clusters.apart(environment=calm) as (client, scheduler, _):
        held = client.persist(frame(PARTS, ROWS))
        wait(held)
        settle = clusters.settled(client, clusters.held(client))
        graph, _, _ = skeleton.lowered(shuffled(held))
        tasks, exchanges = len(graph), skeleton.exchanges(graph)
        pause = 0.0

        def in_their_place(spend: Callable[[float], None]) -> None:
            skeleton.seconds(client, shuffled(held), partial(spend, pause))

        runs = {
            "rearranging": lambda: in_their_place(work.rearrange),
            "sleeping": lambda: in_their_place(time.sleep),
            "shuffle": lambda: computed(client, shuffled(held)),
        }
        spent: dict[str, list[float]] = {name: [] for name in runs}
        took: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(-WARMING, rounds):
            for name, run in runs.items():
                settle()
                before, start = processor_time(scheduler), time.perf_counter()
                run()
                took[name].append(time.perf_counter() - start)
                time.sleep(REST)
                if number >= 0:
                    spent[name].append(processor_time(scheduler) - before)
            if number == -1:
                more = statistics.median(took["shuffle"]) - statistics.median(took["sleeping"])
                pause = max(0.0, more * clusters.WORKERS / exchanges)
    for name in ("rearranging", "sleeping"):
        ordinary = statistics.median(spent[name]) / tasks
        # The graphs are the same, but for these tasks.
        more = statistics.median(a - b for a, b in zip(spent["shuffle"], spent[name], strict=True))
        shuffle = ordinary + more / exchanges
        judged = name == "rearranging"
        yield Figure(
            f"the scheduler's processor time for a task of a shuffle of {PARTS} × {PARTS}",
            time_of(shuffle),
            f"an ordinary task in its place, {name} {time_of(ordinary)}",
            f"{shuffle / ordinary:.2f} ×",
            "≤ 1.5 ×" if judged else "",
            shuffle <= 1.5 * ordinary if judged else None,
            f"{exchanges:,} of {tasks:,} tasks, {time_of(pause)} each",
        )
