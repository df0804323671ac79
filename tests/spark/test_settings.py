"""What is set wrong ends the application at its start, by its name. Where Treadle can do nothing, it sets nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from application_support import LONG
from conftest import Place

KEY = "-----BEGIN PRIVATE KEY-----\nbm9ib2R5J3M=\n-----END PRIVATE KEY-----"
WRONG = {
    "copies": ({"copies": "3"}, "spark.treadle.copies is 3"),
    "a place": ({"place": "3/2"}, "spark.treadle.place is 3/2"),
    "compression": ({"compression": "snappy"}, "spark.treadle.compression is snappy"),
    "a file that is not there": ({"secretFile": "/nowhere/secret"}, "spark.treadle.secretFile is"),
    "a part of three": ({"tls.ca": __file__}, "spark.treadle.tls.certificate is not set"),
    "text of a key": (
        {"tls.ca": __file__, "tls.certificate": __file__, "tls.key": KEY},
        "spark.treadle.tls.key is the text",
    ),
}
NOWHERE = {"spark.treadle.servers": "127.0.0.1:1", "spark.treadle.connectTimeout": "1s"}
REFUSED = {
    "an address of no service": NOWHERE,
    "the old protocol": {"spark.shuffle.useOldFetchProtocol": "true"},
}
SET = (
    "spark.shuffle.sort.io.plugin.class",
    "spark.dynamicAllocation.shuffleTracking.enabled",
    "spark.shuffle.push.enabled",
)


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_setting_ends_the_application(shared_place: Place, which: str) -> None:
    given, text = WRONG[which]
    settings = {f"spark.treadle.{key}": value for key, value in given.items()}
    application = shared_place.application(settings, master="local[1]")
    assert application.process.wait(LONG) != 0
    said = Path(application.log).read_text()
    assert text in said
    assert "bm9ib2R5J3M" not in said


@pytest.mark.parametrize("which", REFUSED)
def test_without_the_service_files_of_idle_executors_stay(shared_place: Place, which: str) -> None:
    settings = {"spark.dynamicAllocation.enabled": "true", **REFUSED[which]}
    application = shared_place.application(settings)
    assert [application.run("setting", key) for key in SET] == [""] * len(SET)
    assert application.run("reduced")


def test_with_the_service_idle_executors_may_go(shared_place: Place) -> None:
    application = shared_place.application({"spark.dynamicAllocation.enabled": "true"})
    assert application.run("setting", SET[1]) == "false"
    assert application.run("reduced")
    application.stop()
    assert "as without Treadle" not in application.log.read_text()


def test_what_has_no_effect_of_what_is_set_is_said(shared_place: Place) -> None:
    plugin = "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO"
    given = {SET[0]: plugin, SET[2]: "true"}
    application = shared_place.application(given, master="local[2]")
    assert application.run("reduced")
    application.stop()
    said = application.log.read_text()
    assert (
        f"Treadle sets {SET[0]}=io.treadle.spark.TreadleDataIO, and {plugin} has no effect" in said
    )
    assert f"Treadle sets {SET[2]}=false, and true has no effect" in said


def test_shuffles_are_in_the_part_of_the_servers_that_is_said(
    new_place: Callable[[], Place],
) -> None:
    place = new_place()
    place.serve("a", "b", "c", "d")
    found = []
    for part in ("1/2", "2/2"):
        application = place.application({"spark.treadle.place": part}, master="local[2]")
        assert application.run("reduced")
        (record,) = place.records(application.run("setting", "spark.treadle.master"))
        found.append(set(record["servers"]))
        application.stop()
    one, other = found
    assert one
    assert other
    assert one.isdisjoint(other)
