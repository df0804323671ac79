"""Executors that are pods: what Spark asks Kubernetes for has the jar and the secret, and pods that end take no map with them.

There is no Kubernetes here: ``kubernetes_support`` says what stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from application_support import JAR, LONG, Application, told
from conftest import Place
from kubernetes_support import kubernetes
from waiting import until

MAPS, PARTITIONS = 6, 4


def test_pods_that_end_lose_nothing(new_place: Callable[[], Place], gates: Path) -> None:
    place = new_place()
    place.serve("a", "b")
    mount = place.directory / "mounted"
    secrets = {"treadle": {"secret": place.secret.read_text()}}
    directory = place.directory / "kubernetes"
    directory.mkdir()
    with kubernetes(directory, secrets) as (master, pods):
        settings = {
            "spark.treadle.servers": place.servers.master.address,
            "spark.executor.instances": "2",
            "spark.executor.memory": "600m",
            "spark.kubernetes.container.image": "spark",
            "spark.kubernetes.executor.secrets.treadle": str(mount),
            "spark.executorEnv.TREADLE_SECRET_FILE": f"{mount}/secret",
            "spark.kubernetes.executor.enableApiWatcher": "false",
            "spark.kubernetes.executor.apiPollingInterval": "200ms",
            "spark.kubernetes.allocation.batch.delay": "1s",
        }
        application = Application(place.directory / "on-pods", settings, master=master)
        place.applications.append(application)
        job = application.begin("kept", str(gates), MAPS, PARTITIONS)
        until((gates / "between-begun").exists, application.said, LONG)
        (container,) = pods.list()[0]["spec"]["containers"]
        given = {one["name"]: one.get("value") for one in container["env"]}
        assert given["SPARK_CLASSPATH"] == JAR
        assert pods.kill() == 2
        (gates / "between").touch()
        # Others are asked for.
        assert application.answer(job) == [1_000 * MAPS, True]
        assert told(gates, "map") == dict.fromkeys(range(MAPS), 1)
        application.stop()
