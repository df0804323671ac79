"""`client.profile()`: what the tasks of workers were seen to do."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from client_support import AGAINST, SOON, Gate
from process_support import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="sampling begins when it is asked for")


def spin(gate: Gate, number: int) -> int:
    gate.arrive(number)
    while not (gate.directory / "open").exists():
        pause_in_spin()
    return number


# Functions called `inner` run while modules are imported.
def pause_in_spin() -> None:
    time.sleep(0.001)


def names(tree: dict[str, Any]) -> set[str]:
    found = {tree["description"]["name"]}
    for child in tree["children"].values():
        found |= names(child)
    return found


def samplers(client: Any) -> list[int]:
    def count() -> int:
        return sum(thread.name == "treadle-profile" for thread in threading.enumerate())

    return list(client.run(count).values())


def test_calls_are_sampled_from_the_first_question_on(new_client, gate):
    client = new_client(workers=2)
    # One thread looks for the dashboard; `profile` has what was seen since somebody asked.
    until(lambda: samplers(client) == [1, 1], "it looks")
    running = client.map(spin, [gate, gate], range(2), pure=False)
    assert client.profile()["count"] == 0
    began = time.time()
    until(
        lambda: "pause_in_spin" in names(client.profile()), "it is seen what the task calls", SOON
    )
    assert {"spin", "pause_in_spin"} <= names(client.profile(key="spin"))
    assert client.profile(key="another")["count"] == 0
    assert client.profile(stop=began - 1000)["count"] == 0
    by_worker = client.profile(merge_workers=False)
    assert by_worker.keys() == client.scheduler_info()["workers"].keys()
    one = next(iter(by_worker))
    assert client.profile(workers=[one])["count"] <= client.profile()["count"]

    async def metadata() -> Any:
        return await client.scheduler.profile_metadata(profile_cycle_interval="1s")

    until(lambda: "spin" in client.sync(metadata)["keys"], "its prefix is counted", SOON)
    assert client.sync(metadata)["counts"]
    gate.open()
    assert client.gather(running) == [0, 1]
    assert samplers(client) == [1, 1]


def test_what_is_native_is_refused_by_name(client):
    for what in ("scheduler", "server"):
        with pytest.raises(NotImplementedError, match=rf"profile\({what}=True\)"):
            client.profile(**{what: True})
