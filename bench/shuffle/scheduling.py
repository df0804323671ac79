"""The scheduler's processor time for a task of a shuffle, beside one for an ordinary task.

The tasks in the place of those of the shuffle take as long: results of short ones share messages.

A thread that expects a message soon looks for it again and again before it sleeps. That is time for
waiting, not for tasks: ``calm.c`` has the scheduler sleep instead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from distributed import wait

import clusters
import skeleton
from figures import Figure, time_of
from program import compiled, processor_time
from sides import by, computed
from table import frame, shuffled

PARTS = 500
ROWS = 10_000
REST = 0.2  # seconds after each, for what the scheduler does when all is done


def measure(quick: bool) -> Iterator[Figure]:
    calm = {"LD_PRELOAD": compiled(Path(__file__).with_name("calm.c"), "-O2", "-shared", "-fPIC")}
    rounds = 5 if quick else 20
    with by("p2p"), clusters.apart(environment=calm) as (client, scheduler, _):
        held = client.persist(frame(PARTS, ROWS))
        wait(held)
        settle = clusters.settled(client, set(client.who_has()))
        graph, _, _ = skeleton.lowered(shuffled(held))
        tasks, exchanges = len(graph), skeleton.exchanges(graph)
        spent: dict[str, list[float]] = {"shuffle": [], "ordinary": []}
        took = dict.fromkeys(spent, 0.0)
        pause = 0.0

        def ordinary_tasks() -> None:
            skeleton.seconds(client, shuffled(held), pause)

        def shuffle_tasks() -> None:
            computed(client, shuffled(held))

        runs = {"ordinary": ordinary_tasks, "shuffle": shuffle_tasks}
        for number in range(-2, rounds):  # the first two do not count
            for name, run in runs.items():
                settle()
                before, start = processor_time(scheduler), time.perf_counter()
                run()
                took[name] = time.perf_counter() - start
                time.sleep(REST)
                if number >= 0:
                    spent[name].append(processor_time(scheduler) - before)
            if number == -1:
                more = took["shuffle"] - took["ordinary"]
                pause = max(0.0, more * clusters.WORKERS / exchanges)
    ordinary = statistics.median(spent["ordinary"]) / tasks
    # The graphs are the same, but for these tasks.
    more = statistics.median(
        a - b for a, b in zip(spent["shuffle"], spent["ordinary"], strict=True)
    )
    shuffle = ordinary + more / exchanges
    yield Figure(
        f"the scheduler's processor time for a task of a shuffle of {PARTS} × {PARTS}",
        time_of(shuffle),
        f"an ordinary task in its place {time_of(ordinary)}",
        f"{shuffle / ordinary:.2f} ×",
        "≤ 1.5 ×",
        shuffle <= 1.5 * ordinary,
        f"{exchanges:,} of {tasks:,} tasks, {time_of(pause)} each",
    )
