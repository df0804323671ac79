"""The image of packaging/container: what it says of itself, and servers in its containers that drain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import treadle
from deployment_support import SERVICE
from ports import free_port
from process_support import Process
from service_support import ROWS, Table
from treadle.shuffle import Service
from waiting import SOON, until

IMAGE = os.environ.get("TREADLE_TEST_IMAGE", "")
CACHE = Path(__file__).parents[2] / ".cache" / "container"
USER = 65532
# As the chart runs it.
CONFINED = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
# Without these, podman asks for more than it may have in a container itself.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")

pytestmark = [
    pytest.mark.skipif(not IMAGE, reason="`make test-container` builds the image"),
    pytest.mark.timeout(8 * SOON, method="signal"),
]


def podman(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    store = ("--root", CACHE / "storage", "--runroot", CACHE / "run", "--runtime", "runc")
    command = list(map(str, ("podman", *store, *arguments)))
    return subprocess.run(command, capture_output=True, text=True, timeout=3 * SOON)


def done(*arguments: str | Path) -> str:
    """Run podman; return what it printed."""
    run = podman(*arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


def inspected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done("image", "inspect", IMAGE))[0]
    return found


def once(program: str, *arguments: str) -> str:
    """Run a program in a container."""
    options = ("--rm", "--network", "none", *LIMITS, *CONFINED, "--entrypoint", program)
    return done("run", *options, IMAGE, *arguments)


def test_what_the_image_says_of_itself() -> None:
    found = inspected()
    settings = found["Config"]
    assert settings["User"] == f"{USER}:{USER}"
    assert settings["Entrypoint"] == ["treadle"]
    assert settings["Cmd"][0] == "shuffle-server"
    assert settings["StopSignal"] in ("SIGTERM", "15")
    assert {*settings["Volumes"]} == {"/rows"}
    assert settings["Labels"]["org.opencontainers.image.version"] == treadle.__version__
    assert found["Healthcheck"]["Test"][0] == "CMD"


def test_it_is_the_image_of_the_chart() -> None:
    chart = SERVICE / "helm" / "treadle-shuffle"
    image = yaml.safe_load((chart / "values.yaml").read_text())["image"]
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    assert f"{image['repository']}:{version}" == IMAGE
    assert f"runAsUser: {USER}\n" in (chart / "templates" / "_helpers.tpl").read_text()
    # The chart's first container.
    assert "--mode" in once("install", "--help")


def test_nothing_but_the_place_of_rows_belongs_to_its_user() -> None:
    shell = "find / -xdev -user 65532 -not -path '/proc/*' 2>/dev/null; find /opt/treadle -writable"
    assert once("sh", "-c", shell) == "/rows"


def test_nothing_of_the_build_is_left() -> None:
    # The settings of this machine are lent to the build. An empty file is where they were.
    shell = "ls -d /build /opt/treadle/bin/pip* /etc/pip.conf 2>/dev/null; cat /etc/pip.conf"
    assert once("sh", "-c", f"{shell} 2>/dev/null || true") in ("", "/etc/pip.conf")


def test_it_tells_how_it_is_used() -> None:
    options = ("--rm", "--network", "none", *LIMITS, *CONFINED)
    assert done("run", *options, IMAGE).startswith("Usage: treadle shuffle-server")
    assert done("run", *options, IMAGE, "--version").endswith(treadle.__version__)


@pytest.fixture
def begin(tmp_path: Path, secret: Path) -> Iterator[Callable[[str, str], str]]:
    """Starts a server in a container; returns the container's name."""
    own = tmp_path / "secret-of-containers"
    shutil.copy(secret, own)
    own.chmod(0o600)
    os.chown(own, USER, USER)
    # Others have to pass.
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o711)
    tmp_path.chmod(0o711)
    begun: list[str] = []

    def begin(name: str, master: str) -> str:
        container = f"treadle-{name}-{uuid.uuid4().hex[:8]}"
        port = free_port()
        options = (
            *("--detach", "--name", container, "--network", "host", *LIMITS, *CONFINED),
            *("--volume", f"{own}:/run/treadle/secret:ro", "--health-interval", "disable"),
            *("--env", f"TREADLE_HEALTH=http://127.0.0.1:{port}/health"),
        )
        of_server = (
            *("--name", name, "--domain", name, "--http", f"127.0.0.1:{port}"),
            *("--local-directory", "/rows", "--secret-file", "/run/treadle/secret"),
            *("--memory-limit", "1GiB", "--drain-timeout", f"{SOON}"),
        )
        begun.append(container)
        done("run", *options, IMAGE, "shuffle-server", master, *of_server)
        return container

    yield begin
    for container in begun:
        podman("rm", "--force", "--time", "0", "--volumes", container)


def is_healthy(container: str) -> bool:
    return podman("healthcheck", "run", container).returncode == 0


def test_servers_in_containers_drain(
    begin: Callable[[str, str], str],
    start: Callable[..., Process],
    secret: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    master = start("shuffle-master", "127.0.0.1:0").address
    a, b = (begin(name, master) for name in "ab")
    table = Table(maps=4, partitions=8, rows=50_000)
    with Service(master, timeout=SOON) as service:

        def names() -> set[str]:
            return {server["name"] for server in service.state()["servers"]}

        until(lambda: names() == {"a", "b"}, lambda: done("logs", a) + done("logs", b))
        until(lambda: is_healthy(a) and is_healthy(b), lambda: done("logs", a) + done("logs", b))
        with service.shuffle(4, 8, ROWS) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            c, d = (begin(name, master) for name in "cd")
            until(lambda: names() == {*"abcd"}, lambda: done("logs", c) + done("logs", d))
            # It sends what the image says, and would kill after that time.
            done("stop", "--time", str(2 * SOON), a)
            assert done("inspect", "--format", "{{.State.ExitCode}}", a) == "0", done("logs", a)
            own = ("--name", "d", "--secret-file", "/run/treadle/secret")
            done("exec", c, "treadle", "shuffle-server", master, "--drain", *own)
            assert done("wait", d) == "0"
            # What these two had is at `c` now.
            done("kill", b)
            until(lambda: names() == {"c"}, lambda: str(names()))
            table.compare(shuffle)


def test_a_server_without_a_master_is_not_healthy(begin: Callable[[str, str], str]) -> None:
    container = begin("a", f"127.0.0.1:{free_port()}")
    waits = "Waiting for the shuffle master"
    until(lambda: waits in podman("logs", container).stderr, "it waits")
    assert not is_healthy(container)
    done("stop", "--time", str(SOON), container)
    assert done("inspect", "--format", "{{.State.ExitCode}}", container) == "0"
