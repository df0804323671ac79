"""What the tests of the client share: how a client is made, gates, and functions for tasks.

Tasks run in other processes, so everything here can be imported and pickled there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import distributed
import pytest

from waiting import SOON, until

AGAINST = os.environ.get("TREADLE_TESTS_AGAINST", "treadle")
# Whether distributed's own clusters run the tasks.
IS_DASK = AGAINST in ("distributed", "accelerated")


def distributed_fails(why: str) -> pytest.MarkDecorator:
    """A test of what the documentation promises and distributed itself does not do."""
    return pytest.mark.skipif(IS_DASK, reason=f"distributed fails: {why}")


def client_class() -> type[distributed.Client]:
    if IS_DASK:
        return distributed.Client
    if AGAINST != "treadle":
        pytest.fail(
            f"TREADLE_TESTS_AGAINST is {AGAINST!r}: it must be 'accelerated', 'distributed' or "
            "'treadle'"
        )
    import treadle

    found = getattr(treadle, "Client", None)
    if found is None:
        pytest.fail("treadle.Client does not exist; TREADLE_TESTS_AGAINST=distributed runs these "
                    "tests against distributed")  # fmt: skip
    return found


def make_client(workers: int = 2, threads_per_worker: int = 1, **kwargs: Any) -> distributed.Client:
    """A client with a cluster of its own: `workers` processes on this machine."""
    if IS_DASK:
        client = client_class()(
            n_workers=workers,
            threads_per_worker=threads_per_worker,
            processes=True,
            dashboard_address=":0",
            **kwargs,
        )
        if AGAINST == "accelerated":
            import treadle

            treadle.accelerate(client)
        return client
    return client_class()(workers=workers, threads_per_worker=threads_per_worker, **kwargs)


def make_in_process_client(**kwargs: Any) -> distributed.Client:
    """A client whose tasks run on two threads of this process."""
    if IS_DASK:
        return client_class()(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0", **kwargs
        )
    return client_class()(threads_per_worker=2, **kwargs)


class Shared:
    """The client of a module; a test that fails or leaves something behind costs a new one."""

    def __init__(self, make: Callable[[], distributed.Client]) -> None:
        self.make = make
        self.client: distributed.Client | None = None

    def get(self) -> distributed.Client:
        if self.client is None:
            self.client = self.make()
        return self.client

    def drop(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            with suppress(Exception):
                client.close(timeout=SOON)


def connect(client: distributed.Client, **kwargs: Any) -> distributed.Client:
    """One more client of the cluster that `client` uses."""
    return client_class()(client.scheduler_info()["address"], **kwargs)


def refused(*args: Any, **options: Any) -> str:
    """What a client is told that is not let in."""
    with pytest.raises(OSError, match=r".") as caught:
        client_class()(*args, **{"timeout": 20, "set_as_default": False, **options})
    return str(caught.value)


def has_no_workers(client: distributed.Client) -> bool:
    return client.scheduler_info()["workers"] == {}


def addresses(client: distributed.Client) -> list[str]:
    return list(client.scheduler_info()["workers"])


def reach(client: distributed.Client) -> None:
    """Return when the workers have taken in what the client said before, a cancellation say.

    The scheduler's messages to a worker stay in order, so a call that goes through it is behind what
    it follows from: one to a single worker. The second one is behind what the scheduler answered to
    what the workers reported at the first.
    """
    for _ in range(2):
        for worker in addresses(client):
            client.run(int, workers=[worker])


class Gate:
    """Holds tasks until a test opens it, and tells the test who arrived.

    It is made of files, so that it works with every implementation and from every process.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self) -> None:
        (self.directory / "open").touch()

    def arrive(self, name: object = "somebody") -> None:
        # One write to a file that is open for appending is never mixed with another's.
        file = os.open(self.directory / "arrivals", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{name}\n".encode())
        finally:
            os.close(file)

    def wait(self) -> None:
        until((self.directory / "open").exists, "somebody opens the gate", 2 * SOON)

    def arrivals(self) -> list[str]:
        """The names of those that arrived, the first one first."""
        file = self.directory / "arrivals"
        return file.read_text().splitlines() if file.exists() else []

    def arrived(self, n: int = 1) -> bool:
        return len(self.arrivals()) >= n


class Unpickled:
    """A value that stays at its worker, and is counted in each process where it is unpickled."""

    count = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytes(100_000)

    def __setstate__(self, state: dict[str, Any]) -> None:
        Unpickled.count += 1
        self.__dict__.update(state)


def pass_gate(gate: Gate, value: Any = None, name: object = "somebody") -> Any:
    """Arrive, wait until the gate is open, return `value`."""
    gate.arrive(name)
    gate.wait()
    return value


def note(gate: Gate, name: object, value: Any = None) -> Any:
    """Leave a mark that this ran; nothing else."""
    gate.arrive(name)
    return value


def inc(x: int) -> int:
    return x + 1


def dec(x: int) -> int:
    return x - 1


def double(x: int) -> int:
    return x * 2


def add(x: Any, y: Any) -> Any:
    return x + y


def div(x: float, y: float) -> float:
    return x / y


def identity(x: Any) -> Any:
    return x


def fail(message: str = "it failed") -> None:
    raise ValueError(message)


def fail_times(n: int, directory: str, value: Any = None) -> Any:
    """Fail the first n times that it is called with this directory, then return `value`."""
    mark = Path(directory) / f"attempt-{uuid.uuid4().hex}"
    mark.touch()
    if len(list(Path(directory).glob("attempt-*"))) <= n:
        raise RuntimeError("not yet")
    return value


def attempts(directory: Path) -> int:
    return len(list(directory.glob("attempt-*")))
