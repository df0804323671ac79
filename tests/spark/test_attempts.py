"""An attempt that YARN starts after one that failed because of the service shuffles without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from application_support import LONG, Application
from conftest import Place
from service_support import Servers
from waiting import until

PLUGIN = "spark.shuffle.sort.io.plugin.class"
STOCK = "the service was why an earlier one failed"


class Attempts:
    """Drivers that have the environment of attempts of one application."""

    def __init__(self, place: Place, staging: Path) -> None:
        self.place = place
        self.staging = staging
        staging.mkdir()

    def begin(self, number: int, settings: dict[str, str] | None = None) -> Application:
        environment = {
            "CONTAINER_ID": f"container_e17_1700000000000_0001_{number:02}_000001",
            "SPARK_YARN_STAGING_DIR": self.staging.as_uri(),
            "LOCAL_DIRS": str(self.staging.parent),
        }
        return self.place.application(settings, master="local[2]", environment=environment)

    def noted(self) -> list[Path]:
        return [file for file in self.staging.iterdir() if not file.name.startswith(".")]


def is_stock(application: Application) -> bool:
    assert application.run("reduced")
    is_said = STOCK in application.log.read_text()
    assert is_said == (application.run("setting", PLUGIN) == "")
    return is_said


def fails_with_its_servers(application: Application, servers: Servers, gates: Path) -> None:
    """Run a job of which all servers, `a` and `b`, are killed between its stages."""
    gates.mkdir()
    job = application.begin("kept", str(gates), 4, 3)
    ready = gates / "between-begun"
    until(lambda: ready.exists() or application.process.poll() is not None, application.said, LONG)
    assert ready.exists(), application.said()
    for name in ("a", "b"):
        servers.kill(name)
    (gates / "between").touch()
    until(lambda: len(application.answers) > job, application.said, LONG)
    kind, text = application.answers[job]
    assert kind == "error", text


def test_the_attempt_after_one_that_the_service_failed_is_without_it(
    new_place: Callable[[], Place], tmp_path: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    attempts = Attempts(place, tmp_path / "staging")
    first = attempts.begin(1, {"spark.treadle.timeout": "30s"})
    fails_with_its_servers(first, servers, tmp_path / "gates")
    first.stop()
    assert len(attempts.noted()) == 1, first.said()
    servers.begin("c")
    servers.begin("d")
    servers.ready()
    assert is_stock(attempts.begin(2))
    # Neither another application's first attempt, nor one whose staging folder has no such file.
    assert not is_stock(attempts.begin(1))
    other = Attempts(place, tmp_path / "another")
    assert not is_stock(other.begin(2))


def test_an_attempt_after_a_failure_of_the_service_and_then_another_is_with_it(
    new_place: Callable[[], Place], tmp_path: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    attempts = Attempts(place, tmp_path / "staging")
    first = attempts.begin(1, {"spark.treadle.timeout": "5s"})
    fails_with_its_servers(first, servers, tmp_path / "gates")
    until(lambda: len(attempts.noted()) == 1, first.said, LONG)
    for name in ("c", "d"):
        servers.begin(name)
    servers.ready()
    # The program goes on, and its own code fails.
    failing = first.begin("failing")
    until(lambda: len(first.answers) > failing, first.said, LONG)
    assert "ZeroDivisionError" in first.answers[failing][1]
    first.stop()
    assert attempts.noted() == []
    assert not is_stock(attempts.begin(2))


def test_an_attempt_after_another_failure_is_with_the_service(
    shared_place: Place, tmp_path: Path
) -> None:
    attempts = Attempts(shared_place, tmp_path / "staging")
    first = attempts.begin(1)
    failing = first.begin("failing")
    assert first.run("reduced")
    assert first.answers[failing][0] == "error"
    first.stop()
    assert attempts.noted() == []
    assert not is_stock(attempts.begin(2))
    assert first.process.wait(LONG) == 0
