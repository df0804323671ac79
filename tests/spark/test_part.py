"""What `make test` runs of Spark, in one application: its results are those of plain Python, whatever is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from application_support import LONG, Application, begun, told
from conftest import Place, places
from waiting import until

MAPS, PARTITIONS = 6, 4
# Bytes of a row. All rows are many times as large as what servers keep in memory here.
WIDTH = 500
ONCE = dict.fromkeys(range(MAPS), 1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service of three servers, which have most rows in files."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_ROWS", "250000")
        made = places(tmp_path_factory, monkeypatch)
        place = next(made)()
        place.serve("a", "b", "c")
        yield place
        next(made, None)


@pytest.fixture(scope="module")
def application(place: Place) -> Application:
    return place.application()


@pytest.mark.parametrize("job", ["window", "reduced", "ordered", "listed"])
def test_a_job_returns_what_python_computes(application: Application, job: str) -> None:
    assert application.run(job)


def test_sql_has_partitions_coalesced_and_shared(application: Application) -> None:
    is_right, plan = application.run("grouped")
    assert is_right
    assert "AQEShuffleRead coalesced" in plan
    is_right, plan = application.run("skewed", 40_000)
    assert is_right
    assert "skewed" in plan


def test_java_objects_and_what_has_no_rows(application: Application) -> None:
    assert application.run("objects") == [True, True, True]
    assert application.run("empty") == [True, 0, 0]


def test_no_host_is_preferred_for_what_is_at_the_service(application: Application) -> None:
    """There is none. In local mode, Spark would wait for it as long as another task of the stage has a host."""
    assert application.run("placed") == [1000, 0]


def in_middle(
    place: Place, application: Application, gates: Path, event: Callable[[], None]
) -> None:
    """Have something happen while one map of six runs."""
    job = application.begin("gated", str(gates), MAPS, PARTITIONS, False)
    begun(gates, application, "map", MAPS - 1)
    event()
    (gates / "maps").touch()
    assert application.answer(job)
    assert told(gates, "map") == ONCE


def test_a_server_is_killed_in_the_middle(
    place: Place, application: Application, gates: Path
) -> None:
    in_middle(place, application, gates, lambda: place.servers.kill("a"))
    place.servers.begin("a")
    place.servers.ready()


def test_a_server_that_comes_back_at_its_address_is_another_one(
    place: Place, application: Application, gates: Path
) -> None:
    def restart() -> None:
        listen = place.servers.processes["b"].address.rpartition("/")[2]
        place.servers.kill("b")
        place.servers.begin("b", listen=listen)
        place.servers.ready()

    in_middle(place, application, gates, restart)


def between(
    application: Application, gates: Path, event: Callable[[], None], partitions: int = PARTITIONS
) -> None:
    """Have something happen between the maps and those who read their rows."""
    job = application.begin("kept", str(gates), MAPS, partitions, WIDTH)
    until((gates / "between-begun").exists, application.said, LONG)
    event()
    (gates / "between").touch()
    assert application.answer(job) == [1_000 * MAPS, True]
    assert told(gates, "map") == ONCE


def test_executors_that_are_killed_after_their_stage_lose_nothing(
    application: Application, gates: Path
) -> None:
    pids = application.executors()
    assert len(pids) == 2

    def kill() -> None:
        for pid in pids:
            application.kill_executor(pid)

    between(application, gates, kill)


def test_bits_that_flipped_at_one_server_are_noticed(
    place: Place, application: Application, gates: Path
) -> None:
    # Nobody has killed this one, which has a third of both copies, or less where others took more of late. Of so
    # many partitions, it has the copy that is read of some.
    partitions = 48
    directory = place.servers.directory("c")

    def files() -> list[Path]:
        return list(directory.rglob("*.shuffle"))

    def flip() -> None:
        """Flip a bit in every 10,000th byte of the server's files."""
        third = 2 * 1_000 * MAPS * WIDTH // 3
        until(lambda: sum(file.stat().st_size for file in files()) > third // 8, application.said)
        flipped = 0
        for path in files():
            content = bytearray(path.read_bytes())
            for at in range(5_000, len(content), 10_000):
                content[at] ^= 1
                flipped += 1
            with path.open("r+b") as file:
                file.write(content)
        assert flipped > PARTITIONS

    between(application, gates, flip, partitions)
    records = place.records(application.run("setting", "spark.treadle.master"))
    assert "were not those that were sent" in str([record["troubles"] for record in records])
