"""Both attempts of a map write all of its rows, and each row is read once. Spark starts the second one on another host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from application_support import LONG, tasks
from cluster_support import Cluster
from conftest import Place
from waiting import until


def test_both_attempts_of_a_map_end(
    new_place: Callable[[], Place], cluster: Cluster, tmp_path: Path
) -> None:
    place = new_place()
    place.serve("a", "b")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.minTaskRuntime": "0",
        "spark.locality.wait": "0s",
        "spark.executor.memory": "600m",
    }
    application = place.application(settings, master=cluster.address)
    gates = tmp_path / "gates"
    gates.mkdir()
    job = application.begin("slow", str(gates), 4)
    until(lambda: len(list(gates.glob("attempt-0-*"))) == 2, application.said, LONG)
    # The first attempt goes on as the second one ends.
    (gates / "slow").touch()
    assert application.answer(job)
    # Rows of the attempt that comes later have no effect, neither before the commit nor after it.
    assert application.run("reduced")
    counted = tasks(application.stop(), "ShuffleMapTask")
    assert len(counted) >= 4
