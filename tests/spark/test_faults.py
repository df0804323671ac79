"""What is killed while Spark shuffles: the results stay, and only what is lost runs again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from application_support import LONG, all_copies_are_lost, begun, tasks, told
from conftest import Place
from waiting import until

MAPS, PARTITIONS = 6, 4


def once(events: list[dict[str, Any]], maps: int = MAPS) -> bool:
    """Whether no map has succeeded twice."""
    counted = tasks(events, "ShuffleMapTask")
    return len(counted) == maps and set(counted.values()) == {1}


def test_a_server_is_killed_while_maps_run(new_place: Callable[[], Place], gates: Path) -> None:
    place = new_place()
    servers = place.serve("a", "b", "c")
    application = place.application()
    job = application.begin("gated", str(gates), MAPS, PARTITIONS, False)
    begun(gates, application, "map", MAPS - 1)
    servers.kill("a")
    (gates / "maps").touch()
    assert application.answer(job)
    assert once(application.stop())


def test_a_server_is_killed_while_partitions_are_read(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    (gates / "maps").touch()
    job = application.begin("gated", str(gates), MAPS, PARTITIONS, True)
    begun(gates, application, "reader", 1)
    servers.kill("b")
    (gates / "readers").touch()
    assert application.answer(job)
    assert once(application.stop())


def test_a_server_that_comes_back_at_its_address_is_another_one(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    job = application.begin("gated", str(gates), MAPS, PARTITIONS, False)
    begun(gates, application, "map", MAPS - 1)
    listen = servers.processes["a"].address.rpartition("/")[2]
    servers.kill("a")
    servers.begin("a", listen=listen)
    servers.ready()
    (gates / "maps").touch()
    assert application.answer(job)
    assert once(application.stop())


def test_all_copies_are_lost_and_the_maps_run_again(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    all_copies_are_lost(application, gates, servers, MAPS, PARTITIONS)
    application.stop()


def test_a_task_reads_no_rows_of_two_runs_of_a_map(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    job = application.begin("differing", str(gates), 2)
    for index in range(2):
        begun(gates, application, f"reader-{index}", 1)
    for name in ("a", "b"):
        servers.kill(name)
    for name in ("c", "d"):
        servers.begin(name)
    servers.ready()
    # The first reader finds that rows are lost, so that the maps run again, and it reads what they have now.
    (gates / "first-0").touch()
    until(lambda: len(list(gates.glob("reader-0-*"))) > 1, application.said, LONG)
    # The second one has rows of before.
    (gates / "first-1").touch()
    refused = "all maps ran again with other rows"
    until(
        lambda: refused in application.log.read_text() or (gates / "read-1").exists(),
        application.said,
        LONG,
    )
    (gates / "later").touch()
    assert application.answer(job) == [[1, 1], [1, 1]]
    application.stop()


def test_executors_that_are_killed_after_their_stage_lose_nothing(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    place.serve("a", "b")
    application = place.application()
    before = application.executors()
    assert len(before) == 2
    job = application.begin("kept", str(gates), MAPS, PARTITIONS)
    until((gates / "between-begun").exists, application.said, LONG)
    for pid in before:
        application.kill_executor(pid)
    (gates / "between").touch()
    assert application.answer(job) == [1_000 * MAPS, True]
    assert told(gates, "map") == dict.fromkeys(range(MAPS), 1)
    application.stop()


def test_an_executor_that_is_killed_in_its_stage_loses_what_runs(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    place.serve("a", "b")
    application = place.application()
    before = application.executors()
    job = application.begin("gated", str(gates), MAPS, PARTITIONS, False)
    # One map waits, and the others have ended, at both executors.
    until((gates / f"completed-{MAPS - 1}").exists, application.said, LONG)
    for pid in before:
        application.kill_executor(pid)
    (gates / "maps").touch()
    assert application.answer(job)
    assert once(application.stop())


def test_a_task_that_waits_for_the_service_is_killed(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    assert application.run("reduced")
    # Without a server, maps wait for one.
    for name in ("a", "b"):
        servers.kill(name)
    job = application.begin("killed", str(gates), False)
    begun(gates, application, "map", 2)
    (gates / "cancel").touch()
    failed, ended = application.answer(job)
    assert failed == "Py4JJavaError"
    assert ended == "ended"
    servers.begin("c")
    servers.begin("d")
    servers.ready()
    assert application.run("reduced")


def test_a_task_that_waits_for_rows_is_killed(new_place: Callable[[], Place], gates: Path) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    job = application.begin("killed", str(gates), True)
    until((gates / "written").exists, application.said, LONG)
    stopped = list(servers.processes.values())
    for server in stopped:
        server.send(signal.SIGSTOP)
    for gate in ("read", "cancel"):
        (gates / gate).touch()
    failed, ended = application.answer(job)
    for server in stopped:
        server.send(signal.SIGCONT)
    assert failed == "Py4JJavaError"
    assert ended == "ended"
