"""Large jobs that run together are in different parts of the servers."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from served_support import GB, Served
from treadle.coordinator._admission import Room
from treadle.coordinator._placement import PLACE, place

MiB = 2**20


@pytest.mark.parametrize(
    ("size", "servers", "free", "beside", "part"),
    [
        (10 * GB, 16, 1000 * GB, {}, "1/2"),
        (10 * GB, 16, 1000 * GB, {"1/2": 9 * GB}, "2/2"),
        # Both have one: that of the smaller one.
        (10 * GB, 16, 1000 * GB, {"1/2": 9 * GB, "2/2": 8 * GB}, "2/2"),
        (10 * GB, 40, 1000 * GB, {"1/4": 1, "2/4": 1, "4/4": 1}, "3/4"),
        # A small one would be at a few servers anyway.
        (64 * 16 * MiB - 1, 16, 1000 * GB, {}, ""),
        (64 * 16 * MiB, 16, 1000 * GB, {}, "1/2"),
        # Too few servers for two parts, or too little room in one.
        (10 * GB, 15, 1000 * GB, {}, ""),
        (10 * GB, 16, 19 * GB, {}, ""),
        (10 * GB, 16, 40 * GB, {"1/2": 11 * GB, "2/2": 11 * GB}, ""),
        # There were more servers before: nobody knows which of these.
        (10 * GB, 16, 1000 * GB, {"1/4": 8 * GB, "1/2": 1}, "2/2"),
    ],
)  # fmt: skip
def test_where_a_large_job_is(size, servers, free, beside, part) -> None:
    assert place(size, servers, free, beside) == part


@given(
    st.integers(0, 10**13), st.integers(0, 2000), st.integers(0, 10**15),
    st.dictionaries(st.sampled_from(["1/2", "2/2", "1/3", "4/4"]), st.integers(0, 10**13)),
)  # fmt: skip
def test_a_part_has_the_room(size, servers, free, beside) -> None:
    found = place(size, servers, free, beside)
    if found:
        part, parts = map(int, found.split("/"))
        assert 1 <= part <= parts <= servers // 8
        assert beside.get(found, 0) + size <= free // parts


def test_large_jobs_that_run_together_are_apart(served: Served) -> None:
    served.rule(names=["large*", "small*"])
    served.room = Room(16, 4000 * GB, 4000 * GB)
    names = ("large a", "large b", "large c", "small")
    for name in names:
        identity = name.replace(" ", "-")
        served.decided(f"first-{identity}", name=name)
        pushed = 20 * GB if name != "small" else 10**6
        served.end(f"first-{identity}", duration=10.0, shuffle_bytes=pushed)

    def part(identity: str, name: str) -> str | None:
        found: dict[str, str] = served.decided(identity, name=name)["settings"]
        return found.get(PLACE)

    assert part("a", "large a") == "1/2"
    assert part("small", "small") is None
    assert part("b", "large b") == "2/2"
    served.end("a", duration=10.0, shuffle_bytes=20 * GB)
    # Where the one was that has ended.
    assert part("c", "large c") == "1/2"
    # A rule may say another part, or none.
    served.rule(id=1, names=["large*"], settings={PLACE: ""})
    assert part("d", "large a") == ""


def test_two_large_jobs_of_one_transaction_are_apart(served: Served) -> None:
    served.rule()
    served.room = Room(32, 4000 * GB, 4000 * GB)
    served.decided("first", name="large")
    served.end("first", duration=10.0, shuffle_bytes=100 * GB)
    job = {"cluster": "a", "queue": "etl", "user": "ann", "name": "large", "version": "3.5.9"}

    begun, go = threading.Event(), threading.Event()

    def hold(_connection: object) -> None:
        begun.set()
        assert go.wait(60)

    # What is asked meanwhile is decided in the next transaction.
    holding = served.coordinator.database.write(hold, 60)
    assert begun.wait(60)
    asked = [served.coordinator.decide({"id": f"r{n}", "job": job}) for n in range(4)]
    go.set()
    holding.result(60)
    told = [one.result(60)["settings"][PLACE] for one in asked]
    assert sorted(told) == ["1/4", "2/4", "3/4", "4/4"]
