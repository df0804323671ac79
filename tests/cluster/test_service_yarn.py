"""packaging/yarn: YARN's services run shuffle servers, start them again, and have them drain."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployment_support import check_options, from_make, treadle_program
from process_support import Process, send
from treadle import _core
from waiting import SOON, until
from yarn_support import Yarn, yarn

HERE = Path(__file__).parent
SPECIFICATION = Path(__file__).parents[2] / "packaging" / "yarn" / "treadle-shuffle.json"
NODES = 3
# A ResourceManager, nodes, and what they run begin one after another, each a JVM.
LATE = 6 * SOON


def specification() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SPECIFICATION.read_text())
    return found


def words() -> list[str]:
    """The words of a server's command, as a shell expands them."""
    found = specification()
    (server,) = found["components"]
    given = found["configuration"]["env"]

    def value(match: re.Match[str]) -> str:
        return str(given.get(match[1], match[1]))

    line = re.sub(r"\$([A-Z_]+)", value, server["launch_command"])
    return shlex.split(re.sub(r"\$\{[^}]*\}", "x", line))


def test_options_are_those_of_the_command() -> None:
    start, program, *arguments = words()
    assert (start, program) == ("exec", specification()["configuration"]["env"]["TREADLE"])
    check_options(arguments)


def test_a_server_stays_within_its_container() -> None:
    (server,) = specification()["components"]
    command = words()
    limit = command[command.index("--memory-limit") + 1]
    assert limit.endswith("GiB")
    # YARN ends a container that takes more.
    assert int(limit.removesuffix("GiB")) * 1024 < int(server["resource"]["memory"])


def test_yarn_looks_at_the_page_that_the_server_has() -> None:
    (server,) = specification()["components"]
    command = words()
    _, _, port = command[command.index("--http") + 1].rpartition(":")
    url = server["readiness_check"]["properties"]["url"]
    assert url == f"http://${{THIS_HOST}}:{port}/health"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Yarn]:
    jars = from_make("TREADLE_TEST_YARN", "test-yarn")
    with yarn(jars, tmp_path, NODES) as made:
        if made is None:
            pytest.skip("this user may not have network namespaces")
        yield made


class Application:
    """A program with a shuffle, on the host of the ResourceManager."""

    def __init__(self, cluster: Yarn, *arguments: str) -> None:
        path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "shuffle_application.py"), *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=cluster.enter(0),
        )

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> None:
        self.process.communicate("\n", timeout=SOON)
        assert self.process.returncode == 0


def launch(cluster: Yarn, tmp_path: Path, changes: dict[str, str]) -> None:
    """Launch the specification as its page says; ``changes`` are of its environment."""
    wanted = specification()
    wanted["configuration"]["env"].update(changes)
    # What the machine of a test has.
    wanted["components"][0]["resource"] = {"cpus": 1, "memory": "1024"}
    path = tmp_path / "treadle-shuffle.json"
    path.write_text(json.dumps(wanted))
    cluster.rest("", path)


def ready(cluster: Yarn, count: int) -> dict[str, dict[str, Any]]:
    """Wait until so many containers are ready; return them by their names."""

    def found() -> dict[str, dict[str, Any]]:
        # Each question costs a machine that has enough to do.
        time.sleep(0.5)
        servers = cluster.rest("/treadle-shuffle")["components"]
        return {
            one["component_instance_name"]: one
            for server in servers
            for one in server.get("containers", ())
        }

    def are_ready() -> dict[str, dict[str, Any]]:
        now = found()
        return now if [one["state"] for one in now.values()] == ["READY"] * count else {}

    return until(are_ready, lambda: f"{found()} {cluster.errors()}", LATE)


@pytest.mark.timeout(20 * SOON, method="signal")
def test_servers_on_yarn(cluster: Yarn, start: Callable[..., Process], tmp_path: Path) -> None:
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    _core.create_certs(str(certificates), ["node"], 1, False)
    tls = ("--tls", str(certificates / "node"))
    address = f"treadle+tls://{cluster.names[0]}:7790"
    master = start("shuffle-master", address, *tls, before=cluster.enter(0))
    until(lambda: "listening at" in master.output, lambda: master.output)
    launch(
        cluster,
        tmp_path,
        {
            "TREADLE": str(treadle_program(tmp_path / "treadle")),
            "TREADLE_MASTER": address,
            "TREADLE_SECURITY": " ".join(tls),
            "TREADLE_SERVER_OPTIONS": f"--memory-limit 700MiB --drain-timeout {SOON}",
        },
    )
    containers = ready(cluster, NODES)
    assert len({one["bare_host"] for one in containers.values()}) == NODES
    names = {f"treadle-shuffle-{name}" for name in containers}
    for number in range(1, NODES + 1):
        (server,) = servers_on(cluster, number)
        used = [word for word in server[1] if "/disk-" in word]
        assert len(used) == 2, server

    def joined(name: str) -> int:
        return sum(f"{name} at " in line and "has joined" in line for line in master.lines)

    assert [joined(name) for name in names] == [1] * NODES, master.output

    # One is killed: YARN starts it again, and no row is missing.
    first = Application(cluster, address, "1", *tls[1:])
    first.says("half")
    ((process, command),) = servers_on(cluster, 1)
    killed = command[command.index("--name") + 1]
    send(process, signal.SIGKILL)
    until(lambda: joined(killed) == 2, lambda: master.output, LATE)
    first.goes_on()
    first.says("read")
    first.ends()

    # One is taken away: it leaves in order, and no row is missing.
    second = Application(cluster, address, "2", *tls[1:])
    second.says("half")
    cluster.run("-flex", "treadle-shuffle", "-component", "server", str(NODES - 1))
    until(lambda: " has left" in master.output, lambda: master.output, LATE)
    until(lambda: sum(bool(servers_on(cluster, at)) for at in range(1, NODES + 1)) == NODES - 1)
    second.goes_on()
    second.says("read")
    second.ends()
    assert master.output.count(" is lost") == 1, master.output

    cluster.run("-stop", "treadle-shuffle")
    until(lambda: master.output.count(" has left") == NODES, lambda: master.output, LATE)
    for number in range(1, NODES + 1):
        until(lambda at=number: not servers_on(cluster, at), lambda: str(cluster.errors()), LATE)


def servers_on(cluster: Yarn, host: int) -> list[tuple[int, list[str]]]:
    """The ids and the commands of a host's servers."""
    found = []
    for process in cluster.processes(host):
        try:
            command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "shuffle-server" in command:
            found.append((process, command))
    return found
