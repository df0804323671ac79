"""Fixtures of the tests of Spark on the shuffle service. `make test-spark` runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from application_support import JAR, LONG, PYTHON, Application
from cluster_support import Cluster
from process_support import Process
from service_support import Servers

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3 * LONG, method="signal"))


class Place:
    """A service of real processes, and Spark applications that use it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.secret = directory / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text("a secret of this test alone")
        self.processes: list[Process] = []
        self.applications: list[Application] = []
        self.servers: Servers

    def start(self, *arguments: str, **options: Any) -> Process:
        process = Process(*arguments, secret=self.secret, **options)
        self.processes.append(process)
        return process

    def serve(self, *names: str) -> Servers:
        self.servers = Servers(self.start, self.directory / "servers")
        for name in names:
            self.servers.begin(name, "--memory-limit", "512MiB")
        self.servers.ready()
        return self.servers

    def application(self, settings: dict[str, str] | None = None, **options: Any) -> Application:
        directory = self.directory / f"application-{len(self.applications)}"
        given = {"spark.treadle.secretFile": str(self.secret), **(settings or {})}
        if "spark.treadle.servers" not in given:
            given["spark.treadle.servers"] = self.servers.master.address
        self.applications.append(Application(directory, given, **options))
        return self.applications[-1]

    def records(self, master: str) -> list[dict[str, Any]]:
        """What `treadle shuffle list` says of the shuffles of a master."""
        command = ("shuffle", "list", "--service", master, "--secret-file", str(self.secret))
        said = subprocess.run(
            [sys.executable, "-m", "treadle", *command, "--json", "-"],
            stdout=subprocess.PIPE,
            check=True,
            timeout=LONG,
        )
        found: list[dict[str, Any]] = json.loads(said.stdout)["shuffles"]
        return found

    def end(self) -> None:
        for application in self.applications:
            application.end()
        for process in reversed(self.processes):
            process.end()


def places(
    factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Place]]:
    assert PYTHON, "TREADLE_SPARK_PYTHON is not set: use `make test-spark`"
    assert JAR, "TREADLE_SPARK_JAR is not set: use `make test-spark`"
    made: list[Place] = []

    def make() -> Place:
        place = Place(factory.mktemp("spark"))
        monkeypatch.setenv("TREADLE_SECRET_FILE", str(place.secret))
        made.append(place)
        return place

    yield make
    for place in made:
        place.end()


@pytest.fixture
def new_place(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Place]]:
    yield from places(tmp_path_factory, monkeypatch)


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service of two servers for all tests of a module."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = places(tmp_path_factory, monkeypatch)
        place = next(made)()
        place.serve("a", "b")
        yield place
        next(made, None)


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    """The folder by which a test and its job tell each other how far they are."""
    return tmp_path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()
