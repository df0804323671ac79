"""Random rounds on one shuffle service: kills, pauses, maps that run twice. Every row is compared.

Servers have memory for all rows; or files and a remote store, with full disks and servers of the next release among
them.

TREADLE_ROUNDS is how many; the number of a round is its seed.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from applications_support import Application, held
from rounds_support import FIRST, ROUNDS, Job, MasterRound, RegistryRound
from service_support import Servers
from treadle.shuffle import Service
from waiting import SOON, until

# Applications beside the one that stays from round to round.
APPLICATIONS = 2


class Round:
    """One shuffle, and what happens to its servers."""

    def __init__(
        self, servers: Servers, seed: int, options: Sequence[tuple[str, ...]] = ((),)
    ) -> None:
        self.servers = servers
        self.options = options
        self.random = random.Random(seed)
        self.seed = seed
        self.job = Job(servers.service, self.random, seed, self.step)
        self.lock = threading.Lock()
        # After so many steps of the round (maps written, partitions read) something happens.
        steps = self.job.steps
        self.at = {self.random.randint(1, steps) for _ in range(self.random.randint(1, 2))}
        self.steps = 0

    def step(self) -> None:
        with self.lock:
            self.steps += 1
            if self.steps not in self.at:
                return
            name = self.random.choice(sorted(self.servers.processes))
            if self.random.random() < 0.3:
                server = self.servers.processes[name]
                server.send(signal.SIGSTOP)
                threading.Timer(1.0, server.send, [signal.SIGCONT]).start()
            else:
                self.servers.processes.pop(name).process.kill()
                new = f"{name[0]}-{self.seed}-{self.steps}"
                self.servers.begin(new, *self.random.choice(self.options))

    def run(self) -> None:
        self.job.run()


# It takes as long as there are rounds.
@pytest.mark.timeout(60 + 10 * ROUNDS, method="signal")
def test_random_rounds(new_servers: Callable[..., Servers]) -> None:
    servers = new_servers("abc")
    for seed in range(FIRST, FIRST + ROUNDS):
        servers.ready()
        Round(servers, seed).run()
    assert servers.service.state()["shuffles"] == []


# It takes as long as there are rounds.
@pytest.mark.timeout(60 + 15 * ROUNDS, method="signal")
@pytest.mark.usefixtures("few_rows_in_memory")
def test_random_rounds_with_disks_and_a_remote_store(
    new_servers: Callable[..., Servers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = ("--remote", f"file://{tmp_path / 'store'}")
    # All rows in the store; what files do not take; nothing has room in files.
    options = ((*remote, "--storage", "remote"), remote, (*remote, "--disk-limit", "1kB"))
    servers = new_servers()
    for name, some in zip("abc", options, strict=True):
        servers.begin(name, *some)
    # What replaces them is of the next release.
    servers.ready()
    monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_PROTOCOL", "4")
    for seed in range(FIRST, FIRST + ROUNDS):
        servers.ready()
        Round(servers, seed, options).run()
    assert servers.service.state()["shuffles"] == []


# It takes as long as there are rounds.
@pytest.mark.timeout(60 + 15 * ROUNDS, method="signal")
@pytest.mark.usefixtures("few_rows_in_memory")
def test_random_rounds_with_masters_that_are_killed(
    new_servers: Callable[..., Servers], tmp_path: Path
) -> None:
    remote = ("--remote", f"file://{tmp_path / 'store'}")
    options = ((*remote, "--storage", "remote"), remote, ())
    servers = new_servers()
    for name, some in zip("abc", options, strict=True):
        servers.begin(name, *some)
    with ExitStack() as stack:
        services = [servers.service]
        for _ in range(APPLICATIONS):
            services.append(stack.enter_context(Service(servers.master.address, timeout=SOON)))
        for seed in range(FIRST, FIRST + max(1, ROUNDS // 2)):
            wait_for_all(servers, services)
            victims = [Application(servers.master.address, seed + at) for at in range(2)]
            for victim in victims:
                stack.callback(victim.kill)
                victim.says("half")

            def lose_one(seed: int = seed) -> None:
                name = min(servers.processes)
                servers.processes.pop(name).process.kill()
                servers.begin(f"{name[0]}-{seed}", *options[ord(name[0]) - ord("a")])

            MasterRound(services, victims, lose_one, seed).run()
            # Neither what ended well nor what the dead have left is anywhere.
            until(
                lambda: not any(held(servers.service).values()),
                lambda: f"nothing is held: {held(servers.service)}",
            )
            assert all(victim.process.returncode for victim in victims)


def known(service: Service) -> set[str]:
    """The servers that a master knows."""
    return {server["name"] for server in service.state()["servers"]}


def wait_for_all(servers: Servers, services: Sequence[Service]) -> None:
    """Wait until each master, and the registry, knows exactly the servers that there are, and the registry the masters."""
    address, wanted = servers.master.address, set(servers.processes)
    with Service(address, own_master=False, timeout=SOON) as registry:
        for service in (*services, registry):
            until(
                lambda service=service: known(service) == wanted,
                lambda service=service: f"servers {wanted}, there are {known(service)}",
            )
        count = len(services)
        until(
            lambda: len(registry.state()["masters"]) == count, f"the registry knows {count} masters"
        )


# It takes as long as there are rounds.
@pytest.mark.timeout(60 + 10 * ROUNDS, method="signal")
def test_random_rounds_with_a_registry_that_dies(new_servers: Callable[..., Servers]) -> None:
    servers = new_servers("abc")
    registry = (servers.kill_master, servers.restart_master)

    def lose_one() -> None:
        servers.processes.pop(min(servers.processes)).end()

    # A round has several shuffles.
    for seed in range(FIRST, FIRST + max(1, ROUNDS // 2)):
        with ExitStack() as stack:
            services = [servers.service]
            for _ in range(APPLICATIONS):
                service = Service(servers.master.address, timeout=SOON)
                services.append(stack.enter_context(service))
            RegistryRound(services, registry, lose_one, seed).run()
            if len(servers.processes) < 3:
                # It joins when the registry is there.
                servers.begin(f"d-{seed}")
            wait_for_all(servers, services)
    assert servers.service.state()["shuffles"] == []
