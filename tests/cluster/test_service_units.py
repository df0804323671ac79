"""The units of packaging/service/systemd: systemd takes them, and their commands run a service that drains."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from deployment_support import SERVICE, check_options, treadle_program
from process_support import Process
from service_support import ROWS, Table
from treadle.shuffle import Service
from waiting import SOON, until

UNITS = SERVICE / "systemd"
NAMES = ("treadle-shuffle-master", "treadle-shuffle-server")
COORDINATOR = "treadle-shuffle-coordinator"


def values(name: str) -> dict[str, str]:
    """The settings of a unit's service, with those of its drop-in."""
    text = (UNITS / f"{name}.service").read_text()
    text += (UNITS / "treadle-shuffle-.service.d" / "common.conf").read_text()
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def environment() -> dict[str, str]:
    """What shuffle.env says."""
    lines = (UNITS / "shuffle.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def words(name: str, variables: dict[str, str], specifiers: dict[str, str]) -> list[str]:
    """The words of ExecStart=, as systemd expands them: $NAME to several words, ${NAME} to one."""
    command = values(name)["ExecStart"]
    for specifier, value in specifiers.items():
        command = command.replace(specifier, value)
    found: list[str] = []
    for word in shlex.split(command):
        if re.fullmatch(r"\$[A-Z_]+", word):
            found += variables[word[1:]].split()
        else:
            found.append(re.sub(r"\$\{([A-Z_]+)\}", lambda match: variables[match[1]], word))
    return found


@pytest.mark.parametrize("name", [*NAMES, COORDINATOR])
def test_options_are_those_of_the_commands(name: str) -> None:
    check_options(words(name, environment(), {})[1:])


def test_a_server_has_time_to_drain() -> None:
    options = words("treadle-shuffle-server", environment(), {})
    drain = int(options[options.index("--drain-timeout") + 1])
    assert drain < int(values("treadle-shuffle-server")["TimeoutStopSec"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    units = tmp_path / "units"
    shutil.copytree(UNITS, units)
    # The program has to be there.
    program = str(treadle_program(tmp_path / "treadle"))
    for name in (*NAMES, COORDINATOR):
        unit = units / f"{name}.service"
        unit.write_text(unit.read_text().replace("/opt/treadle/bin/treadle", program))

    def said() -> str:
        paths = [units / f"{name}.service" for name in (*NAMES, COORDINATOR)]
        command = ["systemd-analyze", "verify", "--man=no", *paths]
        done = subprocess.run(
            command,
            timeout=SOON,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"SYSTEMD_UNIT_PATH": f"{units}:"},
        )
        # What is wrong with units of this machine is not about ours.
        lines = [line for line in done.stdout.splitlines() if "treadle" in line]
        return "\n".join(lines)

    assert said() == ""
    drop_in = units / "treadle-shuffle-.service.d" / "common.conf"
    drop_in.write_text(drop_in.read_text().replace("ProtectHome=", "ProtectHouse="))
    assert "ProtectHouse" in said()


def test_the_commands_of_the_units_run_a_service_that_drains(
    start: Callable[..., Process],
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    variables = environment() | {
        "TREADLE_LISTEN": "127.0.0.1:0",
        "TREADLE_SECURITY": f"--secret-file {secret}",
    }

    def begin(name: str, host: str, domain: str = "") -> Process:
        state = tmp_path / host
        (state / name).mkdir(parents=True)
        line = words(name, variables, {"%H": host, "%S": str(state)})
        return start(*line[1:], *(["--domain", domain] if domain else []))

    variables["TREADLE_MASTER"] = begin(NAMES[0], "master").address
    a, b = (begin(NAMES[1], name, name) for name in "ab")
    table = Table(maps=2, partitions=4, rows=1000)
    with Service(variables["TREADLE_MASTER"], timeout=SOON) as service:
        until(lambda: len(service.state()["servers"]) == 2, "both join")
        with service.shuffle(2, 4, ROWS) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            begin(NAMES[1], "c", "c")
            until(lambda: len(service.state()["servers"]) == 3, "the third one joins")
            a.send(signal.SIGTERM)
            assert a.wait() == 0, a.output
            # What `a` had is at `c` now.
            b.end()
            table.compare(shuffle)


def test_the_command_of_the_coordinators_unit_serves_with_the_tokens_of_a_file(
    start: Callable[..., Process],
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fastapi")
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    tokens = tmp_path / "coordinator.tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("operator olga 0123456789abcdef\n")
    (tmp_path / COORDINATOR).mkdir()
    name, _, value = values(COORDINATOR)["Environment"].partition("=")
    monkeypatch.setenv(name, value.replace("%S", str(tmp_path)))
    with Service(servers=1) as service:
        variables = environment() | {
            "TREADLE_MASTER": service.address,
            "TREADLE_SECURITY": "",
            "TREADLE_COORDINATOR_OPTIONS": "--listen 127.0.0.1:0",
        }
        line = words(COORDINATOR, variables, {"/etc/treadle/coordinator.tokens": str(tokens)})
        process = start(*line[1:])
        headers = {"Authorization": "Bearer 0123456789abcdef"}
        request = urllib.request.Request(process.told("listening on ") + "/api/rules", headers=headers)  # fmt: skip
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            assert json.loads(answer.read()) == {"is_on": True, "rules": []}
    assert (tmp_path / COORDINATOR / "coordinator.db").exists()
    # It has the tokens: no other is printed.
    assert "page:" not in process.output
