"""Shuffle servers in registries that are no masters: lists of real files, and etcd and ZooKeeper that are killed."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from pandas.testing import assert_frame_equal

from client_support import AGAINST
from ports import free_port
from process_support import Process
from registry_processes import Etcd, RegistryProcess, ZooKeeper
from rounds_support import FIRST, ROUNDS, RegistryRound
from service_support import ROWS, Table
from treadle import _core
from treadle.__main__ import main
from treadle.shuffle import Service, ShuffleError
from waiting import SOON, until

ROOT = Path(__file__).parents[2]
# Seconds for which a registry is away at least: longer than its sessions, which end after 15.
AWAY = float(os.environ.get("TREADLE_TEST_AWAY", "20"))
SHUFFLES = 20

pytestmark = pytest.mark.timeout(20 * SOON + 3 * AWAY, method="signal")


@pytest.fixture(autouse=True)
def _secret(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


class Members:
    """Servers that register at one URL."""

    def __init__(self, start: Callable[..., Process], url: str) -> None:
        self.url = url
        self._start = start
        self.processes: dict[str, Process] = {}

    def begin(self, name: str, *options: str, port: int = 0) -> Process:
        """Start a server; its name is its failure domain."""
        listen = ("--listen", f"127.0.0.1:{port}", "--http", "none")
        named = ("--name", name, "--domain", name)
        process = self._start("shuffle-server", self.url, *named, *listen, *options)
        self.processes[name] = process
        return process

    def ready(self, service: Service) -> None:
        """Wait until a master has exactly these servers."""
        wanted = set(self.processes)
        # A registry that is back is tried again after eight seconds at the latest.
        limit = 2 * SOON
        until(
            lambda: names(service) == wanted, lambda: f"{wanted}, there are {names(service)}", limit
        )


def names(service: Service) -> set[str]:
    return {server["name"] for server in service.state()["servers"]}


def partitions(service: Service, name: str) -> int:
    (found,) = [one for one in service.state()["servers"] if one["name"] == name]
    held: int = found["partitions"]
    return held


def shuffled(service: Service, table: Table) -> None:
    """Run a shuffle, and compare every row."""
    with service.shuffle(table.maps, table.partitions, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        table.compare(shuffle)


class Listed(Members):
    """Servers in a file."""

    def __init__(self, start: Callable[..., Process], path: Path) -> None:
        super().__init__(start, f"static:{path}")
        self._path = path

    def join(self, name: str, *options: str) -> Process:
        """Add a server to the file, and start it."""
        port = free_port()
        known = self._path.read_text() if self._path.exists() else ""
        self._path.write_text(f"{known}127.0.0.1:{port}  # {name}\n")
        return self.begin(name, *options, port=port)


@pytest.fixture
def listed(start: Callable[..., Process], tmp_path: Path) -> Listed:
    servers = Listed(start, tmp_path / "servers")
    for name in "ab":
        servers.join(name)
    return servers


def test_servers_of_a_file_are_used_and_those_that_are_added(listed: Listed) -> None:
    table = Table(maps=3, partitions=6, rows=2_000)
    with Service(listed.url, timeout=SOON) as service:
        listed.ready(service)
        shuffled(service, table)
        assert service.state()["registry"]["current"]
        listed.join("c", "--rack", "r7", "--host-kind", "ssd")
        listed.ready(service)
        (added,) = [one for one in service.state()["servers"] if one["name"] == "c"]
        assert (added["rack"], added["host_kind"]) == ("r7", "ssd")
        with service.shuffle(3, 6, ROWS) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            assert partitions(service, "c") > 0
            # A list that cannot be read any more is used as it was.
            listed._path.unlink()
            until(lambda: not service.state()["registry"]["current"], "the list is said to be old")
            assert str(listed._path) in service.state()["registry"]["why"]
            table.compare(shuffle)
        shuffled(service, table)


def test_a_server_leaves_through_a_list_and_its_rows_stay(listed: Listed) -> None:
    listed.join("c")
    table = Table(maps=2, partitions=6, rows=2_000)
    with (
        Service(listed.url, timeout=SOON) as one,
        Service(listed.url, timeout=SOON) as two,
    ):
        for service in (one, two):
            listed.ready(service)
        shuffles = [service.shuffle(2, 6, ROWS) for service in (one, two)]
        for shuffle in shuffles:
            shuffle.commit(table.write_all(shuffle))
        done = run("shuffle-server", listed.url, "--drain", "--name", "a")
        assert done.exit_code == 0, done.output
        assert listed.processes.pop("a").wait() == 0
        listed.processes.pop("b").end()
        for shuffle in shuffles:
            table.compare(shuffle)
            assert shuffle.lost() == []


def test_a_master_for_any_program_takes_servers_of_a_list(
    listed: Listed, start: Callable[..., Process]
) -> None:
    master = start("shuffle-master", "127.0.0.1:0", "--registry", listed.url)
    table = Table(maps=2, partitions=4, rows=1_000)
    with Service(master.address, own_master=False, timeout=SOON) as service:
        listed.ready(service)
        shuffled(service, table)
    # It is the registry of others, too.
    with Service(master.address, timeout=SOON) as service:
        listed.ready(service)
        shuffled(service, table)


def test_the_page_of_a_server_says_where_it_is_registered(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    listed = Listed(start, tmp_path / "servers")
    server = listed.join("a", "--http", "127.0.0.1:0")
    state = server.state()
    assert (state["registry"], state["not_registered"]) == (listed.url, None)
    assert "treadle_shuffle_registered 1" in server.page("/metrics")


def test_what_a_list_cannot_do_is_refused_by_name(listed: Listed) -> None:
    with pytest.raises(ValueError, match=r"application=7: static:.* does not know"):
        Service(listed.url, application=7)
    with pytest.raises(ValueError, match=r"own_master=False needs .*static:.* no master"):
        Service(listed.url, own_master=False)
    done = run("shuffle", "list", "--service", listed.url)
    assert done.exit_code == 1
    assert "has no masters of applications" in done.output
    with (
        Service(listed.url, timeout=SOON) as service,
        pytest.raises(ValueError, match="has no masters of applications"),
    ):
        service.attach(2**40)
    stranger = listed.begin("stranger")
    assert stranger.wait() == 1
    assert "does not have the server treadle://127.0.0.1:" in stranger.output
    done = run("shuffle-master", "127.0.0.1:0", "--registry", "127.0.0.1:7790")
    assert done.exit_code == 2
    assert "etcd://HOST/PREFIX" in done.output


def test_a_registry_that_is_not_there_is_said() -> None:
    port = free_port()
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}.* no host can be reached"):
        Service(f"etcd://127.0.0.1:{port}/none", timeout=2)
    with pytest.raises(ValueError, match="TREADLE_REGISTRY_CA"):
        Service("zk+tls://127.0.0.1/none", timeout=2)


def _kind(kind: type[RegistryProcess]) -> Any:
    is_there = bool(os.environ.get(kind.variable))
    mark = pytest.mark.skipif(not is_there, reason="make test-registries has it")
    return pytest.param(kind, id=kind.__name__, marks=mark)


@pytest.fixture(params=[_kind(Etcd), _kind(ZooKeeper)])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryProcess]:
    process: RegistryProcess = request.param(tmp_path)
    yield process
    process.kill()


@pytest.fixture
def members(registry: RegistryProcess, start: Callable[..., Process]) -> Members:
    members = Members(start, registry.url)
    for name in "ab":
        members.begin(name)
    return members


def test_no_call_fails_while_a_registry_is_away_and_who_joins_then_is_used_afterwards(
    registry: RegistryProcess, members: Members
) -> None:
    table = Table(maps=4, partitions=8, rows=3_000)
    with Service(members.url, timeout=SOON) as service:
        members.ready(service)
        failures: list[BaseException] = []
        done = 0
        is_back = threading.Event()

        def work() -> None:
            nonlocal done
            try:
                while done < SHUFFLES or not is_back.is_set():
                    shuffled(service, table)
                    done += 1
            except BaseException as error:
                failures.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        until(lambda: done or failures, "a shuffle is done")
        registry.kill()
        until(lambda: not service.state()["registry"]["current"], "the list is said to be old")
        assert members.begin("late").address
        gone = time.monotonic()
        until(lambda: time.monotonic() > gone + AWAY, "a session has ended", 2 * AWAY)
        assert not failures, failures
        assert names(service) == {"a", "b"}
        registry.restart()
        members.ready(service)
        until(lambda: service.state()["registry"]["current"], "the list is current")
        is_back.set()
        worker.join()
        assert not failures, failures
        assert done >= SHUFFLES
        with service.shuffle(4, 8, ROWS) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            assert partitions(service, "late") > 0
            table.compare(shuffle)


def test_random_rounds_with_a_registry_that_dies(
    registry: RegistryProcess, members: Members
) -> None:
    members.begin("c")

    def lose_one() -> None:
        members.processes.pop(min(members.processes)).end()

    for seed in range(FIRST, FIRST + max(1, ROUNDS // 2)):
        with ExitStack() as stack:
            services = [stack.enter_context(Service(members.url, timeout=SOON)) for _ in range(3)]
            for service in services:
                members.ready(service)
            RegistryRound(services, (registry.kill, registry.restart), lose_one, seed).run()
            if len(members.processes) < 3:
                members.begin(f"d-{seed}")
            for service in services:
                members.ready(service)


def test_processes_of_one_application_use_one_master(members: Members) -> None:
    table = Table(maps=2, partitions=4, rows=1_000)
    with (
        Service(members.url, application=7, timeout=SOON) as first,
        Service(members.url, application=7, timeout=SOON) as second,
        Service(members.url, timeout=SOON) as other,
    ):
        members.ready(first)
        members.ready(other)
        assert (first._master is not None, second._master is None) == (True, True)
        with first.shuffle(2, 4, ROWS) as shuffle:
            receipts = [
                table.write(at.attach(shuffle.number), n) for n, at in enumerate((second, other))
            ]
            shuffle.commit(receipts)
            attached = other.attach(shuffle.number)
            attached.generation = shuffle.generation
            table.compare(attached)
            done = run("shuffle", "list", "--service", members.url)
            assert done.exit_code == 0, done.output
            assert shuffle.name in done.output
        with pytest.raises(ShuffleError, match="it has ended"):
            other.attach(shuffle.number ^ 1 << 62)
        # The next one is the master before a session could end: the first has said that it ends.
        second.close()
        first.close()
        with Service(members.url, application=7, timeout=10) as third:
            assert third._master is not None


def test_programs_in_rust_use_the_servers_of_a_registry(members: Members) -> None:
    with Service(members.url, timeout=SOON) as service:
        members.ready(service)
    crate = ("-p", "treadle-shuffle-client", "--test", "processes")
    done = subprocess.run(
        ("cargo", "test", "--locked", "--quiet", *crate, "--", "--ignored"),
        cwd=ROOT,
        env=os.environ | {"TREADLE_TEST_REGISTRY": members.url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_server_leaves_through_a_registry(members: Members) -> None:
    members.begin("c", "--rack", "r7")
    table = Table(maps=2, partitions=6, rows=2_000)
    with Service(members.url, timeout=SOON) as service:
        members.ready(service)
        shuffle = service.shuffle(2, 6, ROWS)
        shuffle.commit(table.write_all(shuffle))
        done = run("shuffle-registry", "list", members.url)
        assert "r7" in done.output
        done = run("shuffle-server", members.url, "--drain", "--name", "a")
        assert done.exit_code == 0, done.output
        assert members.processes.pop("a").wait() == 0
        members.processes.pop("b").end()
        table.compare(shuffle)
        assert shuffle.lost() == []
        left = {one["name"] for one in _core.list_registry(members.url, SOON)[0]}
        assert "a" not in left


def test_of_two_servers_with_one_name_the_later_counts_and_the_first_leaves(
    members: Members,
) -> None:
    table = Table(maps=2, partitions=6, rows=2_000)
    with Service(members.url, timeout=SOON) as service:
        members.ready(service)
        shuffle = service.shuffle(2, 6, ROWS)
        shuffle.commit(table.write_all(shuffle))
        first = members.processes["a"]
        second = members.begin("a", "--domain", "c")
        assert first.wait() == 0
        assert f"at {second.address}" in first.output
        members.ready(service)
        table.compare(shuffle)
        assert shuffle.lost() == []
        assert second.process.poll() is None


def _transfers(dask_worker: Any) -> int:
    count: int = dask_worker._native.shuffle_stats()["transfers"]
    return count


@pytest.mark.skipif(AGAINST != "treadle", reason="it is Treadle's own")
def test_shuffles_of_dask_use_servers_of_a_list(
    listed: Listed, new_client: Callable[..., Any]
) -> None:
    frame = pd.DataFrame({"key": np.arange(4_000) % 7, "value": np.arange(4_000)})
    assert all(server.address for server in listed.processes.values())
    client = new_client(workers=2, threads_per_worker=1, shuffle_servers=listed.url)
    until(lambda: client.why_not_served() is None, client.why_not_served)
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        for _ in range(2):
            shuffled = dd.from_pandas(frame, npartitions=4).shuffle("key", npartitions=3)
            found = client.compute(shuffled).result(SOON)
            assert_frame_equal(found.sort_values("value"), frame)
    assert sum(client.run(_transfers).values()) == 0
