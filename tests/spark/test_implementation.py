"""What does the work is loaded from a jar that the settings name, the same one in all processes of an application."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from application_support import JAR, LONG, Application, all_copies_are_lost
from conftest import Place

WHERE, DIGEST = "spark.treadle.implementation", "spark.treadle.implementation.sha256"
USED = "spark.treadle.implementation.used"
PACKAGE, NATIVE = "io/treadle/spark/service/", "native/"
FELL_BACK = "in the jar on the class path is used"
MAPS, PARTITIONS = 6, 4


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copied(to: Path, keeps: Callable[[str], bool] = bool, version: str = "") -> Path:
    """A copy of the jar with what ``keeps`` says, and perhaps another version."""
    with zipfile.ZipFile(JAR) as jar, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as copy:
        for name in filter(keeps, jar.namelist()):
            content = jar.read(name)
            if name == "META-INF/MANIFEST.MF" and version:
                lines = content.decode().splitlines()
                of = "Implementation-Version: "
                changed = [of + version if line.startswith(of) else line for line in lines]
                assert changed != lines
                content = ("\r\n".join(changed) + "\r\n").encode()
            copy.writestr(name, content)
    return to


@pytest.fixture
def thin(tmp_path: Path) -> dict[str, str]:
    """Settings by which no process has an implementation on its class path."""
    jar = copied(tmp_path / "thin.jar", lambda name: not name.startswith((PACKAGE, NATIVE)))
    return {f"spark.{who}.extraClassPath": str(jar) for who in ("driver", "executor")}


def named(jar: Path, digest: str | None = None) -> dict[str, str]:
    return {WHERE: str(jar), DIGEST: digest or sha256(jar)}


def works(application: Application) -> None:
    assert application.run("objects") == [True, True, True]
    is_right, plan = application.run("grouped")
    assert is_right
    assert "AQEShuffleRead coalesced" in plan


def test_two_versions_do_all_the_work_of_two_applications_at_once(
    shared_place: Place, thin: dict[str, str], tmp_path: Path
) -> None:
    jars = [copied(tmp_path / f"{of}.jar", version=f"{of}.0") for of in (8, 9)]
    both = [shared_place.application({**thin, **named(jar)}) for jar in jars]
    begun = [(one, one.begin(job)) for job in ("reduced", "window") for one in both]
    assert all(one.answer(number) for one, number in begun)
    for one, jar in zip(both, jars, strict=True):
        assert one.run("setting", USED) == f"{jar} (sha256 {sha256(jar)})"
        records = shared_place.records(one.run("setting", "spark.treadle.master"))
        assert len(records) >= 2
        works(one)


def test_what_is_lost_runs_again_with_a_loaded_one_beside_that_of_the_class_path(
    new_place: Callable[[], Place], tmp_path: Path
) -> None:
    """Exceptions of the loaded library are classes of the loaded jar."""
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application(named(copied(tmp_path / "9.jar", version="9.0")))
    gates = tmp_path / "gates"
    gates.mkdir()
    all_copies_are_lost(application, gates, servers, MAPS, PARTITIONS)


def test_executors_that_cannot_read_the_jar_get_it_from_the_driver(
    shared_place: Place, thin: dict[str, str], tmp_path: Path
) -> None:
    jar = copied(tmp_path / "9.jar")
    application = shared_place.application({**thin, **named(jar)})
    assert "9.jar" in application.run("setting", USED)
    # Another one at its place is not taken either.
    copied(jar, version="10.0")
    assert application.run("reduced")
    jar.unlink()
    works(application)


def test_a_folder_names_the_version_of_new_applications(
    shared_place: Place, thin: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "versions"
    folder.mkdir()
    jars = [copied(folder / f"treadle-spark-{of}.jar", version=f"{of}") for of in (8, 9)]
    running = []
    for jar in jars:
        (folder / "current").write_text(f"{sha256(jar)}  {jar.name}\n")
        running.append(shared_place.application({**thin, WHERE: folder.as_uri()}))
        assert jar.name in running[-1].run("setting", USED)
    assert all(one.run("reduced") for one in running)


def cut(jar: Path) -> dict[str, str]:
    content = jar.read_bytes()
    jar.write_bytes(content[: len(content) // 2])
    return named(jar)


def gone(jar: Path) -> dict[str, str]:
    settings = named(jar)
    jar.unlink()
    return settings


def without(*names: str) -> Callable[[Path], dict[str, str]]:
    def made(jar: Path) -> dict[str, str]:
        return named(copied(jar, lambda name: not name.startswith(names)))

    return made


def damaged(jar: Path) -> dict[str, str]:
    """A library that is cut, in a jar that is whole."""
    whole = jar.with_suffix(".whole")
    shutil.move(jar, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content[:10_000] if name.startswith(NATIVE) else content)
    return named(jar)


def elsewhere(jar: Path) -> dict[str, str]:
    return {**named(jar), WHERE: "hdfs://127.0.0.1:1/treadle.jar"}


def listed(jar: Path) -> dict[str, str]:
    (jar.parent / "current").write_text(f"{sha256(jar)}  ../{jar.name}\n")
    return {WHERE: str(jar.parent)}


BROKEN: dict[str, tuple[Callable[[Path], dict[str, str]], str]] = {
    "another digest": (lambda jar: named(jar, "0" * 64), "and not 0000"),
    "cut": (cut, "EOF"),
    "gone": (gone, "there is no "),
    "no class": (without(PACKAGE + "ServiceShuffles.class"), "ClassNotFoundException"),
    "no library": (without(NATIVE), "there is none for this machine"),
    "another interface": (without("META-INF/"), "is no implementation of Treadle"),
    "a damaged library": (damaged, "has a library that is cut"),
    "an address of no file system": (elsewhere, "127.0.0.1:1"),
    "a list that leaves its folder": (listed, "one line of sha256sum"),
}


@pytest.mark.parametrize("which", BROKEN)
def test_one_that_is_broken_is_not_used(shared_place: Place, tmp_path: Path, which: str) -> None:
    breaks, why = BROKEN[which]
    settings = breaks(copied(tmp_path / "broken.jar"))
    application = shared_place.application(settings, master="local[2]")
    assert application.run("reduced")
    assert application.run("setting", USED) == ""
    assert application.run("setting", "spark.treadle.master")
    application.stop()
    lines = application.log.read_text().splitlines()
    (warning,) = [line for line in lines if FELL_BACK in line]
    assert why in warning or "was not read within" in warning


WRONG = {
    "no digest": ({WHERE: JAR}, f"{DIGEST} must be the SHA-256 of "),
    "a short digest": ({WHERE: JAR, DIGEST: "1234"}, f"{DIGEST} must be the SHA-256 of "),
    "a password": ({WHERE: "s3a://key:hidden@place/x.jar"}, f"{WHERE} has a password in it"),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_setting_ends_the_application(shared_place: Place, which: str) -> None:
    settings, text = WRONG[which]
    application = shared_place.application(settings, master="local[1]")
    assert application.process.wait(LONG) != 0
    said = application.log.read_text()
    assert text in said
    assert "hidden" not in said
