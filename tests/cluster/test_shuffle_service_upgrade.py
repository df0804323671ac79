"""Processes of two releases in one shuffle service: they work side by side, and those of others are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from process_support import Process
from service_support import ROWS, Servers, Table
from treadle.shuffle import Service, ShuffleError
from waiting import SOON, until

# The newest version of the protocol that this build speaks, and those of the releases before and after it.
NOW = 3
OLD, BEFORE = NOW - 2, NOW - 1
NEXT, AFTER = NOW + 1, NOW + 2
SAID = "TREADLE_TESTING_SHUFFLE_PROTOCOL"
MAPS, PARTITIONS = 6, 12


@pytest.fixture(params=[NOW, NEXT], ids=["an older master", "a newer master"])
def servers(
    request: pytest.FixtureRequest,
    new_servers: Callable[..., Servers],
    monkeypatch: pytest.MonkeyPatch,
) -> Servers:
    with monkeypatch.context() as patch:
        patch.setenv(SAID, str(request.param))
        # Its own connection is of this process, and so of that release, too.
        servers = new_servers()
    servers.service.close()
    servers.service = Service(servers.master.address, own_master=False, timeout=SOON)
    return servers


class Job:
    """Shuffles in turn, until it is told to end."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.table = Table(MAPS, PARTITIONS, rows=30_000)
        self.done = 0
        self.error: BaseException | None = None
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                with self.servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
                    # An error if a map must run again.
                    shuffle.commit(self.table.write_all(shuffle))
                    self.table.compare(shuffle)
                    assert shuffle.lost() == []
                self.done += 1
        except BaseException as error:  # The test raises it.
            self.error = error

    def goes_on(self) -> None:
        """Wait until a shuffle that begins now has been read."""
        wanted = self.done + 2
        until(lambda: self.done >= wanted or self.error is not None, lambda: f"{self.done}")
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self.is_over.set()
        self.thread.join(2 * SOON)
        if self.error is not None:
            raise self.error


def test_each_server_is_replaced_by_one_of_the_next_release_while_a_job_runs(
    servers: Servers,
    start: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    names = "abcdefghij" if request.node.callspec.params["servers"] == NOW else "abc"
    for name in names:
        servers.begin(name)
    servers.ready()
    kept = servers.service.shuffle(MAPS, PARTITIONS, ROWS, name="kept")
    job = Job(servers)
    try:
        kept.commit(job.table.write_all(kept))
        job.goes_on()
        for name in names:
            with monkeypatch.context() as patch:
                patch.setenv(SAID, str(NEXT))
                servers.begin(f"{name}-next")
            servers.ready()
            job.goes_on()
            old = servers.processes[name]
            command = start("shuffle-server", servers.master.address, "--drain", "--name", name)
            assert (command.wait(), old.wait()) == (0, 0), command.output + old.output
            del servers.processes[name]
            servers.ready()
            job.goes_on()
    finally:
        job.end()
    # What was written to the servers before is at those after them.
    job.table.compare(kept)
    kept.close()
    there = {server["name"] for server in servers.service.state()["servers"]}
    assert there == {f"{name}-next" for name in names}
    # That of the one that ended last is whole when all have said what they did for it.
    # The service keeps the latest 256.
    most = min(job.done, 255)
    until(lambda: len(servers.service.records()) > most, lambda: f"{servers.service.records()}")
    records = servers.service.records()
    said = [(one.number, one.transfers, one.repeated, one.failure) for one in records]
    assert [one for one in said if one[1:] != (MAPS, 0, None)] == []


def spoken_with(
    servers: Servers, name: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, int]:
    """Begin a server `now` of this release, and another one of another; return the versions that are spoken with both."""
    servers.begin("now")
    with monkeypatch.context() as patch:
        patch.setenv(SAID, str(protocol))
        servers.begin(name)
    servers.ready()
    return {one["name"]: one["protocol"] for one in servers.service.state()["servers"]}


def test_two_releases_speak_the_version_of_the_older_one(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    spoken = spoken_with(servers, "next", NEXT, monkeypatch)
    assert spoken == {"now": NOW, "next": request.node.callspec.params["servers"]}


@pytest.mark.parametrize("servers", [NOW], indirect=True, ids=["this master"])
def test_who_is_too_old_or_too_new_is_refused_by_name(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        OLD: "it speaks protocol 1 of the shuffle service, and the shuffle master "
        r"\(.*\) speaks protocols 2 to 3: upgrade this process",
        AFTER: "it speaks protocols 4 to 5 of the shuffle service, and the shuffle master "
        r"\(.*\) speaks protocols 2 to 3: upgrade that first",
    }
    for protocol, reason in said.items():
        with monkeypatch.context() as patch:
            patch.setenv(SAID, str(protocol))
            with pytest.raises(ShuffleError, match=reason):
                Service(servers.master.address, timeout=SOON)
            server = servers.begin("other")
            assert server.wait() == 1
        assert "Traceback" not in server.output
        assert reason.rpartition(": ")[2] in server.lines[-1]
    servers.processes.clear()
    servers.ready()


@pytest.mark.parametrize("servers", [NEXT], indirect=True, ids=["a newer master"])
def test_who_could_not_speak_with_a_member_is_refused_by_its_name(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The connection of this process is of the old release.
    monkeypatch.setenv(SAID, str(AFTER))
    server = servers.begin("new")
    assert server.wait() == 1
    assert "speaks protocols 2 to 3: upgrade that first" in server.lines[-1]


@pytest.mark.parametrize("servers", [NOW], indirect=True, ids=["this master"])
def test_maps_that_are_written_together_go_one_by_one_to_who_does_not_know_that(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = spoken_with(servers, "before", BEFORE, monkeypatch)
    assert spoken == {"now": NOW, "before": BEFORE}
    table = Table(20, PARTITIONS, rows=500)
    with servers.service.shuffle(20, PARTITIONS, ROWS) as shuffle:
        maps = [(number, table.rows[number], table.numbers[number]) for number in range(20)]
        shuffle.commit(shuffle.write_all(maps))
        table.compare(shuffle)
