"""The same random workloads on Treadle and on distributed: values, errors and times are compared.

    python tests/cluster/differential.py --minutes 60 --seed 1

Each seed is one workload. One that differs is printed with its seed, and played again by
`--seed N --only`. Workloads have one right answer on distributed: where the order in which tasks run
would matter, they wait in between, or run on one worker of one thread.

What differs and stays so is not asked for, or made equal:

- Values of at most 1 KiB, encoded, are unpickled for each reader: in distributed, readers on a worker
  share them. So nothing writes to small values of futures here.
- Large keyword arguments of `map`: distributed's scheduler fails at more than 100 kB.
- Keys of pure calls are hashed otherwise, so keys that are made up are not compared.
- Text of errors that the engines raise themselves (a lost key, a worker that is not there) names
  other things: only their class is compared.
- What cannot be written to may arrive as two equal objects where a call has it twice.
- Two large containers of one call, one of which has the other inside, arrive as two objects.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import logging
import random
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd

import differential_tasks as tasks
from waiting import until

# Seconds in which a workload has to end.
LIMIT = 60
# Treadle may take so many times as long, and so many seconds on top.
FACTOR, SLACK = 2.0, 1.5
# Workloads after which a cluster is made anew.
LIFE = 40

# In bytes: what is in a message or a recipe, what is a constant, what is in shared memory.
BOUNDARIES = [1 << 10, 1 << 16, 100_000, 1 << 20]
HUGE = 1 << 28


@dataclass
class Side:
    """An engine: a client with a cluster of its own."""

    name: str
    make: Callable[[], distributed.Client]
    client: Any = None
    directory: Path = field(default_factory=Path)

    def names(self) -> list[Any]:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return sorted((worker["name"] for worker in workers), key=str)

    def warm_up(self) -> None:
        """What workers import first is not compared."""
        for module in ("dask.dataframe", "distributed"):
            self.client.run(importlib.import_module, module)

    def addresses(self) -> list[str]:
        """Of the workers, by name: the first has one thread, as all have."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return sorted(workers, key=lambda address: str(workers[address]["name"]))

    @property
    def one(self) -> list[str]:
        return self.addresses()[:1]

    def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            with suppress(Exception):
                client.close()
            with suppress(Exception):
                client.cluster.close()


WORKERS = 2
RESOURCES = {"gpu": 1.0}


def make_treadle() -> distributed.Client:
    import treadle

    return treadle.Client(workers=WORKERS, threads_per_worker=1, resources=RESOURCES)


def make_distributed() -> distributed.Client:
    return distributed.Client(
        n_workers=WORKERS,
        threads_per_worker=1,
        processes=True,
        resources=RESOURCES,
        dashboard_address=None,
        set_as_default=False,
    )


Random = random.Random
Workload = Callable[[Random, Side], Any]


# Values


def size_of(random: Random, least: int = 0, huge: bool = False) -> int:
    """Bytes, around a boundary as often as not."""
    if huge and random.random() < 0.01:
        return HUGE + random.choice([-8, 0, 8])
    boundary = random.choice([size for size in BOUNDARIES if size > least])
    if random.random() < 0.6:
        return max(least + 16, boundary + random.choice([-8, 0, 8]))
    return random.randint(least + 16, 2 * boundary)


def value_of(random: Random, size: int, writable: bool = False) -> Any:
    """Something of about so many bytes."""
    count = max(1, size // 8)
    kinds: dict[str, Callable[[], Any]] = {
        "array": lambda: np.zeros(count),
        "integers": lambda: np.zeros(count, "i8"),
        "Fortran": lambda: np.zeros((2, max(1, count // 2)), order="F"),
        "strided": lambda: np.zeros(2 * count)[::2],
        "table": lambda: pd.DataFrame({"x": np.zeros(count)}),
        "series": lambda: pd.Series(np.zeros(count)),
        "list": lambda: [0.0] * min(count, 50_000),
        "bytearray": lambda: bytearray(size),
    }
    if not writable:
        kinds |= {
            "read-only": lambda: read_only(np.zeros(count)),
            "bytes": lambda: b"b" * size,
            "text": lambda: "t" * size,
            "tuple": lambda: tuple(range(min(count, 50_000))),
        }
    return kinds[random.choice(list(kinds))]()


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def wrapped(random: Random, value: Any) -> Any:
    match random.randrange(6):
        case 0:
            return [value]
        case 1:
            return {"a": value}
        case 2:
            return tasks.Box(value)
        case 3:
            return ({"a": [value]}, 1)
        case _:
            return value


# Workloads


def arguments(random: Random, side: Side) -> Any:
    """Calls that share an argument, which some of them change."""
    value = wrapped(random, value_of(random, size_of(random, huge=True)))
    function = random.choice([
        tasks.change, tasks.change, tasks.change_and_return, tasks.identity, tasks.view,
        tasks.describe,
    ])  # fmt: skip
    count = random.choice([1, 2, 5])
    pure = random.random() < 0.3
    client = side.client
    match random.randrange(5):
        case 0:
            batch = random.choice([None, 1, 2])
            futures = client.map(function, [value] * count, range(count), pure=pure,
                                 batch_size=batch)  # fmt: skip
        case 1:
            futures = [client.submit(function, value, pure=pure) for _ in range(count)]
        case 2:
            futures = [client.submit(tasks.change_named, 1, a=value, b=value, pure=pure)]
        case 3:
            value = wrapped(random, value_of(random, size_of(random), writable=True))
            futures = [client.submit(tasks.same, value, value, pure=pure)]
        case _:
            found = []
            for _ in range(count):
                found.append(client.submit(function, value, pure=False).result(timeout=LIMIT))
            return found, tasks.describe(value)
    return client.gather(futures), tasks.describe(value)


def functions(random: Random, side: Side) -> Any:
    """Functions with a state of their own."""
    value = value_of(random, size_of(random), writable=True)
    made: Any = random.choice([
        lambda: tasks.closure(value),
        lambda: tasks.default(value),
        tasks.counter,
        lambda: functools.partial(tasks.bound, value),
        lambda: tasks.Box(value).step,
        lambda: lambda number: number + 1,
    ])()  # fmt: skip
    client = side.client
    count = random.choice([1, 3, 6])
    if random.random() < 0.5:
        return client.gather(client.map(made, range(1, count), pure=False))
    calls = client.map(lambda function, n: function(n), [made] * count, range(count), pure=False)
    return client.gather(calls)


def futures_shared(random: Random, side: Side) -> Any:
    """Values of futures that tasks on one worker change, one after the other."""
    client, one = side.client, side.one
    size = size_of(random, least=4096)
    value = value_of(random, size, writable=True)
    match random.randrange(4):
        case 0:
            shared = client.scatter(value, workers=one, hash=random.random() < 0.5)
        case 1:
            shared = client.scatter(value, broadcast=True)
        case 2:
            shared = client.submit(tasks.identity, value, workers=one, pure=False)
        case _:
            made = client.submit(tasks.identity, value, workers=one, pure=False)
            shared = client.submit(tasks.view, made, workers=one, pure=False)
    distributed.wait(shared, timeout=LIMIT)
    found = []
    for _ in range(random.randint(1, 5)):
        function = random.choice([tasks.change, tasks.change_and_return, tasks.describe])
        argument = random.choice([shared, [shared], {"a": shared}])
        future = client.submit(function, argument, workers=one, pure=False)
        result = future.result(timeout=LIMIT)
        found.append(tasks.describe(result) if function is tasks.change_and_return else result)
    return found


def returned(random: Random, side: Side) -> Any:
    """What a task returned is what it was given, or a part of that; somebody changes it."""
    client, one = side.client, side.one
    value = value_of(random, size_of(random, least=4096), writable=True)
    on = {"workers": one, "pure": False}
    source = client.submit(tasks.identity, value, **on)
    part = client.submit(random.choice([tasks.view, tasks.identity]), source, **on)
    found = [client.submit(tasks.change, part, **on).result(timeout=LIMIT)]
    found.append(client.submit(tasks.first, source, **on).result(timeout=LIMIT))
    if random.random() < 0.5:
        part.release()
        found.append(client.submit(tasks.change, source, **on).result(timeout=LIMIT))
    return found


def errors(random: Random, side: Side) -> Any:
    """Tasks that fail, those that read them, and what their futures say."""
    client = side.client
    kind = random.choice(["value", "key", "own", "chained", "zero", "unpicklable", "large", "no"])
    failing = client.submit(tasks.fail, kind, random.randrange(9), pure=random.random() < 0.5)
    good = client.map(tasks.add, range(4), pure=False)
    reader = client.submit(tasks.add, failing, *good)
    found = [outcome(future.result, timeout=LIMIT) for future in (failing, reader, *good)]
    found.append([future.status for future in (failing, reader, *good)])
    found.append(outcome(client.gather, [*good, reader], errors="raise"))
    found.append(outcome(client.gather, [*good, reader], errors="skip"))
    return found


def flaky(random: Random, side: Side) -> Any:
    """Tasks that are tried again, with arguments that they change."""
    times, retries = random.randrange(3), random.randrange(4)
    value = value_of(random, size_of(random), writable=True)
    future = side.client.submit(
        tasks.fail_times, str(side.directory), times, value, retries=retries, pure=False
    )
    return outcome(future.result, timeout=LIMIT), len(list(side.directory.iterdir()))


def places(random: Random, side: Side) -> Any:
    """Where tasks may run."""
    client = side.client
    chosen = random.randrange(WORKERS)
    worker = side.addresses()[chosen]
    futures = client.map(tasks.where, range(random.randint(1, 20)), workers=[worker], pure=False)
    found = set(map(str, client.gather(futures)))
    anywhere = client.submit(
        tasks.where, workers=["127.0.0.9:1"], allow_other_workers=True, pure=False
    )
    return found == {str(side.names()[chosen])}, str(anywhere.result(timeout=LIMIT)) != ""


def late(random: Random, side: Side) -> Any:
    """Workers that come while tasks run, and go."""
    client = side.client
    data = client.scatter(list(range(6)), broadcast=random.random() < 0.3)
    big = client.map(np.full, [random.choice([10, 20_000])] * 6, range(6), pure=False)
    slow = client.map(lambda i: (time.sleep(0.05), i)[1], range(12), pure=False)
    client.cluster.scale(WORKERS + 1)
    client.wait_for_workers(WORKERS + 1, timeout=LIMIT)
    sums = client.map(lambda a, n: float(a.sum()) + n, big, data, pure=False)
    leaving = random.choice(side.addresses())
    if random.random() < 0.5:
        distributed.wait([*big, *slow], timeout=LIMIT)
    client.retire_workers(workers=[leaving])
    found = client.gather([*slow, *sums]), client.gather(data), client.gather(big)
    client.cluster.scale(WORKERS)
    if len(side.addresses()) != WORKERS:
        side.close()
    else:
        side.warm_up()
    return found


def resources(random: Random, side: Side) -> Any:
    """Tasks that need something of which each worker has one."""
    amount = random.choice([1, 0.5])
    futures = side.client.map(
        tasks.hold, [str(side.directory)] * 4, range(4), seconds=0.05,
        resources={"gpu": amount}, pure=False,
    )  # fmt: skip
    return max(side.client.gather(futures)) <= WORKERS


def priorities(random: Random, side: Side) -> Any:
    """The order in which tasks run that wait for one worker."""
    client, directory, one = side.client, str(side.directory), side.one
    gate = client.submit(tasks.wait_for, directory, workers=one, pure=False, priority=1000)
    levels = [random.randrange(-3, 4) for _ in range(8)]
    futures = [
        client.submit(tasks.note, directory, f"{level}-{i}", workers=one, priority=level)
        for i, level in enumerate(levels)
    ]
    # The scheduler has all of them then; what it sent ahead may still be on its way back.
    client.processing()
    time.sleep(0.5)
    (side.directory / "open").touch()
    client.gather([gate, *futures])
    log = (side.directory / "log").read_text().split()
    ran = [int(name.rpartition("-")[0]) for name in log]
    # Tasks that were sent ahead may be less urgent: one, or with distributed two.
    behind = ran[2:]
    return sorted(ran), behind == sorted(behind, reverse=True)


def keys(random: Random, side: Side) -> Any:
    """One key for several calls, one after the other or at once."""
    client = side.client
    key = f"key-{random.randrange(1 << 30)}"
    one = client.submit(tasks.add, 1, 2, key=key)
    if random.random() < 0.5:
        one.result(timeout=LIMIT)
    other = client.submit(tasks.add, 3, 4, key=key)
    found = [one.result(timeout=LIMIT), other.result(timeout=LIMIT), one.key == other.key]
    if random.random() < 0.5:
        one.cancel()
        found += [one.status, other.status, outcome(other.result, timeout=LIMIT)]
    del one, other
    until(lambda: not client.who_has().get(key), "it is forgotten", LIMIT)
    found.append(client.submit(tasks.add, 5, 6, key=key).result(timeout=LIMIT))
    return found


def cancelled(random: Random, side: Side) -> Any:
    """Futures that are cancelled, with those that depend on them."""
    client, directory = side.client, str(side.directory)
    gates = [
        client.submit(tasks.wait_for, directory, workers=[worker], pure=False)
        for worker in side.addresses()
    ]
    one = client.submit(tasks.add, 1, pure=False)
    two = client.submit(tasks.add, one, 1, pure=False)
    three = client.submit(tasks.add, 3, pure=False)
    random.choice([one, two]).cancel()
    (side.directory / "open").touch()
    client.gather(gates)
    found = [three.result(timeout=LIMIT)]
    for future in (one, two):
        found.append(outcome(future.result, timeout=LIMIT))
        found.append(future.status)
    return found


def graphs(random: Random, side: Side) -> Any:
    """Graphs of Dask, with constants that several tasks read."""
    client = side.client
    size = size_of(random, least=2048)
    rows = max(4, size // 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match random.randrange(5):
            case 0:
                array = da.from_array(np.arange(rows * 1.0), chunks=max(1, rows // 3))
                graph = (array + array[::-1]).sum()
            case 1:
                blocks = da.from_array(np.zeros(4 * rows), chunks=rows)
                change = lambda block: np.array([tasks.change(block)])  # noqa: E731
                graph = blocks.map_blocks(change, dtype=float, chunks=(1,))
            case 2:
                table = pd.DataFrame({"x": np.arange(rows) % 7, "y": np.arange(rows) * 1.0})
                graph = dd.from_pandas(table, npartitions=3).groupby("x").y.sum()
            case 3:
                value = value_of(random, size, writable=True)
                calls = [dask.delayed(tasks.change, pure=False)(value) for _ in range(4)]
                graph = dask.delayed(list)(calls)
            case _:
                data = dask.delayed(value_of(random, size), pure=random.random() < 0.5)
                calls = [dask.delayed(tasks.describe, pure=False)(data, i) for i in range(3)]
                graph = dask.delayed(list)(calls)
        return client.compute(graph).result(timeout=LIMIT)


def nested(random: Random, side: Side) -> Any:
    """Tasks that submit tasks and wait for them."""
    client = side.client
    if random.random() < 0.3:
        value = value_of(random, size_of(random, least=4096), writable=True)
        return client.submit(tasks.nested_with_client, value, pure=False).result(timeout=LIMIT)
    depth, width = random.choice([(1, 4), (2, 2), (2, 3)])
    future = client.submit(tasks.nested, depth, width, True, pure=False)
    return future.result(timeout=LIMIT)


def chains(random: Random, side: Side) -> Any:
    """A random graph of calls; some fail."""
    client = side.client
    futures: list[Any] = []
    for number in range(random.randint(5, 60)):
        reads = random.sample(futures, min(len(futures), random.randrange(4)))
        if random.random() < 0.03:
            # All alike: which of them a task that reads several of them blames is nobody's promise.
            futures.append(client.submit(tasks.fail, "value", pure=False))
        else:
            futures.append(client.submit(
                tasks.add, number, *reads, pure=random.random() < 0.5,
                priority=random.randrange(3), retries=random.choice([None, 1]),
            ))  # fmt: skip
        if random.random() < 0.1:
            futures.pop(random.randrange(len(futures)))
    return [outcome(future.result, timeout=LIMIT) for future in futures]


WORKLOADS: dict[str, tuple[Workload, int]] = {
    "arguments": (arguments, 6),
    "functions": (functions, 3),
    "futures": (futures_shared, 3),
    "returned": (returned, 2),
    "errors": (errors, 2),
    "flaky": (flaky, 2),
    "places": (places, 1),
    "late": (late, 1),
    "resources": (resources, 1),
    "priorities": (priorities, 1),
    "keys": (keys, 1),
    "cancelled": (cancelled, 1),
    "graphs": (graphs, 4),
    "nested": (nested, 1),
    "chains": (chains, 2),
}


# Comparing


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A value, or an error as it is compared."""
    try:
        return call(*args, **options)
    except (CancelledError, TimeoutError) as error:
        # Its text is the engine's own.
        return "raised", type(error).__name__
    except Exception as error:
        cause = type(error.__cause__).__name__
        return "raised", type(error).__name__, str(error), cause


def plain(value: Any) -> Any:
    """A value as something that `==` and `repr` can be asked of."""
    match value:
        case np.ndarray():
            summary = (value.sum().item(), value.flat[0].item()) if value.size else ()
            return "array", value.shape, value.dtype.str, value.flags.writeable, summary
        case pd.DataFrame() | pd.Series():
            return "table", value.to_dict() if len(value) < 50 else (
                value.shape,
                float(value.sum().sum()),
            )
        case tasks.Box(content=np.ndarray() as content):
            # A result of distributed that is an object of one's own forgets that its array is
            # read-only; pickle, and so Treadle, does not.
            kind, shape, dtype, _, summary = plain(content)
            return "box", kind, shape, dtype, summary, value.steps
        case tasks.Box():
            return "box", plain(value.content), value.steps
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            items = [plain(item) for item in value[:50]]
            return type(value).__name__, len(value), items
        case bytes() | bytearray() | str():
            return type(value).__name__, len(value), value[:1000]
        case _ if callable(value):
            return "function"
        case _:
            return value


class Pair:
    """Both engines."""

    def __init__(self) -> None:
        self.sides = [Side("treadle", make_treadle), Side("distributed", make_distributed)]
        self.played = 0

    def play(self, seed: int, times: bool = True) -> list[str]:
        """Play a workload on both; what differs. That Treadle takes much longer does, if `times`."""
        chooser = random.Random(seed)
        names = list(WORKLOADS)
        name = chooser.choices(names, [weight for _, weight in WORKLOADS.values()])[0]
        workload, _ = WORKLOADS[name]
        self.played += 1
        if self.played % LIFE == 0:
            self.close()
        found, seconds = [], []
        for side in self.sides:
            if side.client is None:
                side.client = side.make()
                side.warm_up()
            with tempfile.TemporaryDirectory() as directory:
                side.directory = Path(directory)
                began = time.monotonic()
                with side.client.as_current():
                    played = outcome(workload, random.Random(seed), side)
                    found.append(plain(played))
                    del played
                seconds.append(time.monotonic() - began)
            if seconds[-1] >= LIMIT:
                side.close()
        differences = []
        if found[0] != found[1]:
            differences.append(f"{name}: treadle gives {found[0]!r:.1500},\n  "
                               f"distributed gives {found[1]!r:.1500}")  # fmt: skip
        if times and seconds[0] > FACTOR * seconds[1] + SLACK:
            differences.append(f"{name}: took {seconds[0]:.2f} s, and {seconds[1]:.2f} s there")
        return differences

    def close(self) -> None:
        for side in self.sides:
            side.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Without what tasks that fail have workers say."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first workload")
    parser.add_argument("--only", action="store_true", help="no other workload")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    pair, seed, differing = Pair(), options.seed, []
    with quiet():
        try:
            while True:
                try:
                    differences = pair.play(seed)
                except Exception:
                    differences = [traceback.format_exc()]
                    pair.close()
                for difference in differences:
                    print(f"seed {seed}: {difference}", flush=True)
                differing += [seed] * bool(differences)
                seed += 1
                if options.only or time.monotonic() > end:
                    break
        finally:
            pair.close()
    print(f"{seed - options.seed} workloads; {len(differing)} differ: {differing}")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
