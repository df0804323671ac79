"""Spark's shuffles of all kinds on the shuffle service, in real executors. Results are compared with plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from application_support import Application, metric
from conftest import Place

KINDS = {
    "defaults": {},
    "kryo": {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"},
    "encrypted": {"spark.io.encryption.enabled": "true"},
    "zstd": {"spark.io.compression.codec": "zstd"},
    "uncompressed": {"spark.shuffle.compress": "false"},
}

FEW = {"spark.memory.fraction": "0.02", "spark.memory.storageFraction": "0.0"}


@pytest.fixture(scope="module", params=KINDS)
def application(shared_place: Place, request: pytest.FixtureRequest) -> Iterator[Application]:
    application = shared_place.application(KINDS[request.param])
    yield application
    application.end()


def test_what_sql_groups_is_coalesced(application: Application) -> None:
    is_right, plan = application.run("grouped")
    assert is_right
    assert "AQEShuffleRead coalesced" in plan


def test_a_skewed_join_is_read_by_ranges_of_maps(application: Application) -> None:
    is_right, plan = application.run("skewed", 40_000)
    assert is_right
    assert "skewed" in plan


@pytest.mark.parametrize("job", ["window", "reduced", "ordered", "listed"])
def test_a_job_returns_what_python_computes(application: Application, job: str) -> None:
    assert application.run(job)


def test_maps_are_read_one_by_one_if_a_session_wants_that(application: Application) -> None:
    is_right, plan = application.run("localised", 40_000)
    assert is_right
    assert "AQEShuffleRead local" in plan


def test_a_shuffle_that_spark_has_removed_is_used_again(application: Application) -> None:
    assert application.run("removed") == [True] * 3


def test_rows_of_a_checkpoint_need_no_shuffle(application: Application, tmp_path: Path) -> None:
    assert application.run("checkpointed", str(tmp_path)) == [True, True]


def test_an_rdd_is_repartitioned(application: Application) -> None:
    assert application.run("repartitioned") == [True, 9]


def test_java_objects_are_grouped_sorted_and_counted(application: Application) -> None:
    assert application.run("objects") == [True, True, True]


def test_what_has_no_rows_is_nothing(application: Application) -> None:
    assert application.run("empty") == [True, 0, 0]


def test_what_the_manager_sets_is_there(application: Application) -> None:
    expected = {
        "spark.shuffle.sort.io.plugin.class": "io.treadle.spark.TreadleDataIO",
        "spark.sql.adaptive.localShuffleReader.enabled": "false",
        "spark.dynamicAllocation.shuffleTracking.enabled": "false",
        "spark.shuffle.push.enabled": "false",
    }
    assert {key: application.run("setting", key) for key in expected} == expected


def test_each_byte_of_a_partition_that_tasks_share_is_read_once(shared_place: Place) -> None:
    application = shared_place.application()
    is_right, plan = application.run("rebalanced", 40_000)
    assert is_right
    assert "skewed" in plan
    events = application.stop()
    for unit in ("Bytes", "Records"):
        written = metric(events, "Shuffle Write Metrics", f"Shuffle {unit} Written")
        name = {"Bytes": "Remote Bytes Read", "Records": "Total Records Read"}[unit]
        assert metric(events, "Shuffle Read Metrics", name) == written > 40_000


def test_more_rows_than_there_is_memory_for_are_spilled(shared_place: Place) -> None:
    application = shared_place.application(FEW)
    assert application.run("large", 200_000)
    assert metric(application.stop(), "Disk Bytes Spilled") > 0


def test_streams_of_rows_whose_memory_is_used_again(shared_place: Place, tmp_path: Path) -> None:
    settings = {**FEW, **KINDS["encrypted"], **KINDS["kryo"]}
    application = shared_place.application(settings)
    assert application.run("writables", str(tmp_path))
    assert application.run("large", 200_000)
    assert metric(application.stop(), "Disk Bytes Spilled") > 0


def test_two_applications_at_once(shared_place: Place) -> None:
    both = [shared_place.application(), shared_place.application()]
    begun = [(one, job, one.begin(job)) for job in ("reduced", "window", "ordered") for one in both]
    assert all(one.answer(number) for one, _, number in begun)


def test_without_a_service_spark_shuffles_as_before(shared_place: Place) -> None:
    nowhere = {"spark.treadle.servers": "127.0.0.1:1", "spark.treadle.connectTimeout": "1s"}
    application = shared_place.application(nowhere)
    assert application.run("reduced")
    assert application.run("window")
    application.stop()
    warnings = [
        line for line in application.log.read_text().splitlines() if "as without Treadle" in line
    ]
    assert warnings
    assert "127.0.0.1:1" in warnings[0]
