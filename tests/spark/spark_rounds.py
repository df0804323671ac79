"""A random round of Spark on the shuffle service: jobs and settings by a seed, and processes that are killed meanwhile."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from application_support import Application
from conftest import Place

KRYO = {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    KRYO,
    {"spark.io.encryption.enabled": "true"},
    {**KRYO, "spark.io.encryption.enabled": "true"},
    {"spark.sql.adaptive.enabled": "false"},
    {"spark.treadle.copies": "1"},
)
# Each says whether all rows were there, as the first of a list if there is more to say.
JOBS: tuple[tuple[Any, ...], ...] = (
    ("grouped",), ("skewed", 30_000), ("rebalanced", 20_000), ("localised", 20_000), ("window",), ("reduced",),
    ("ordered",), ("listed",), ("repartitioned",), ("objects",), ("large", 60_000),
)  # fmt: skip
# One that lasts, so that what happens comes while maps and readers run.
MAPS, PARTITIONS = 8, 6
# Seconds from the beginning of a job.
LATEST = 3.0


class Round:
    """Jobs of one application, one after another. During each something happens to a server or an executor."""

    def __init__(self, place: Place, seed: int, directory: Path) -> None:
        self.place = place
        self.random = random.Random(seed)
        self.seed = seed
        self.directory = directory
        self.happened: list[str] = []
        self.failures: list[BaseException] = []

    def run(self) -> None:
        servers = self.place.serve("a", "b", "c")
        settings = self.random.choice(SETTINGS)
        application = self.place.application(settings)
        application.executors()
        jobs: list[tuple[Any, ...]] = self.random.sample(JOBS, 2)
        gates = self.directory / f"gates-{self.seed}"
        gates.mkdir()
        jobs.insert(self.random.randint(0, 2), ("gated", str(gates), MAPS, PARTITIONS, True))
        for job in jobs:
            happening = threading.Timer(
                self.random.uniform(0.0, LATEST),
                self.noted(self.random.choice([self.replace, self.restart, self.pause, self.lose]), application),
            )  # fmt: skip
            happening.start()
            number = application.begin(*job)
            if job[0] == "gated":
                for gate in ("maps", "readers"):
                    threading.Timer(self.random.uniform(0.0, LATEST), (gates / gate).touch).start()
            found = application.answer(number)
            happening.join()
            said = f"seed {self.seed}, {settings}, {job}: {found}, after {self.happened}"
            assert not self.failures, (said, self.failures)
            assert (found[0] if isinstance(found, list) else found) is True, said
        application.stop()
        assert len(servers.processes) == 3

    def noted(self, happen: Callable[[Application], str], application: Application) -> Any:
        def run() -> None:
            try:
                self.happened.append(happen(application))
            except BaseException as error:
                self.failures.append(error)

        return run

    def replace(self, _: Application) -> str:
        """A server is killed, and another one comes."""
        servers = self.place.servers
        name = self.random.choice(sorted(servers.processes))
        servers.processes.pop(name).end()
        servers.begin(f"{name}{len(self.happened)}", "--memory-limit", "512MiB")
        return f"{name} was replaced"

    def restart(self, _: Application) -> str:
        """A server is killed, and is back at its address, without its rows."""
        servers = self.place.servers
        name = self.random.choice(sorted(servers.processes))
        process = servers.processes.pop(name)
        listen = process.address.rpartition("/")[2]
        process.end()
        servers.begin(name, "--memory-limit", "512MiB", listen=listen)
        return f"{name} was restarted"

    def pause(self, _: Application) -> str:
        """A server stands still for two seconds."""
        servers = self.place.servers
        name = self.random.choice(sorted(servers.processes))
        servers.processes[name].send(signal.SIGSTOP)
        threading.Timer(2.0, servers.processes[name].send, [signal.SIGCONT]).start()
        return f"{name} stood still"

    def lose(self, application: Application) -> str:
        """An executor is killed."""
        executors = application.executors()
        if not executors:
            return "there was no executor"
        application.kill_executor(self.random.choice(executors))
        return "an executor was killed"
