"""packaging/service/ssh/treadle-shuffle-hosts: servers on a list of hosts, through a real `sshd`."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployment_support import SERVICE, treadle_program
from process_support import Process
from service_support import ROWS, Table
from sshd_support import sshd, sshd_program
from treadle.shuffle import Service
from waiting import SOON, until

SCRIPT = SERVICE / "ssh" / "treadle-shuffle-hosts"
PROGRAM = sshd_program()


class Script:
    """The script, with a configuration of ssh."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.status = 0
        self.errors = ""

    def __call__(self, *arguments: str | Path, hosts: str = "") -> dict[str, str]:
        """Run it; return what it said of each host."""
        done = subprocess.run(
            ["sh", SCRIPT, *self.options, *map(str, arguments)],
            input=hosts,
            capture_output=True,
            text=True,
            timeout=4 * SOON,
        )
        self.status, self.errors = done.returncode, done.stderr
        pairs = [line.partition(": ") for line in done.stdout.splitlines()]
        return {host: said for host, _, said in pairs}


@pytest.mark.parametrize(
    ("arguments", "hosts", "error"),
    [
        (["start", "-"], "a", "start needs the address of the master"),
        (["begin", "-"], "a", "'begin' is none of start, drain, stop, status"),
        (["-w", "0", "status", "-"], "a", "-w takes a whole number of at least 1, not '0'"),
        (["-p", "many", "status", "-"], "a", "-p takes a whole number"),
        (["status", "-"], "# nobody\n\n", "there are no hosts"),
        (["status", "-"], "-oProxyCommand=x", "'-oProxyCommand=x' is no host"),
        (["status", "-"], "a;b", "'a;b' is no host"),
        (["status", "-"], "a b", "more than one host: a b"),
        (["status", "-"], "me@a\nyou@a", "a is there twice"),
        (["status", "-", "--tls", "x"], "a", "options of servers stand after --"),
        (["status", "-", "--", "--tls", "x"], "a", "status takes no options of servers"),
        (["status"], "", "Usage: treadle-shuffle-hosts"),
        (["status", "/nowhere/hosts"], "", "/nowhere/hosts"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], hosts: str, error: str) -> None:
    script = Script()
    assert script(*arguments, hosts=hosts) == {}
    assert script.status == 2
    assert error in script.errors


def test_shellcheck_finds_nothing() -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=path)
    if shellcheck is None:
        pytest.skip("`make test-deploy` installs shellcheck")
    here = SCRIPT.read_text()
    there = here.partition("<<'THERE'\n")[2].partition("\nTHERE\n")[0]
    # What runs there is called by its name, which is an argument.
    for text, options in ((here, []), (there, ["--exclude=SC2317,SC2329"])):
        done = subprocess.run(
            [shellcheck, "--shell=sh", *options, "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """The script, and hosts `one`, `two` and `three`, which are this machine. Nobody answers at `nowhere`."""
    if PROGRAM is None:
        pytest.skip("there is no sshd: install openssh-server, or name one, TREADLE_SSHD=PATH")
    directory = tmp_path / "sshd"
    directory.mkdir()
    with sshd(PROGRAM, directory) as server:
        configuration = tmp_path / "ssh_config"
        configuration.write_text(
            "Host nowhere\n  Port 1\n"
            f"Host *\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.key}\n"
            "  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
            "  LogLevel ERROR\n"
        )
        # Names that a shell would take apart.
        program = treadle_program(tmp_path / "it's $HOME's")
        state = tmp_path / 'state `of` "servers"'
        script = Script(
            *("-F", str(configuration), "-t", str(program), "-d", str(state), "-w", f"{SOON}")
        )
        try:
            yield script
        finally:
            script("stop", "-", hosts="one\ntwo\nthree\n")


def test_servers_on_a_list_of_hosts(
    script: Script,
    start: Callable[..., Process],
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    master = start("shuffle-master", "127.0.0.1:0")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"# servers\none\n{getpass.getuser()}@two # fast\n\nthree")
    options = ("--", "--secret-file", secret, "--http", "none")
    place = ("--local-directory", tmp_path / "rows of 'all' $hosts")
    said: dict[str, str] = {}
    # They are one machine, and are to fail apart.
    for host in ("one", f"{getpass.getuser()}@two", "three"):
        domain = ("--domain", host)
        said |= script("-m", master.address, "start", "-", *options, *place, *domain, hosts=host)
        assert (script.status, script.errors) == (0, "")
        assert "started, process" in said[host]
    processes = {text.split(", ")[1].removeprefix("process ") for text in said.values()}
    assert len(processes) == 3
    for process in processes:
        assert str(place[1]).encode() in Path("/proc", process, "cmdline").read_bytes().split(b"\0")
    table = Table(maps=2, partitions=4, rows=1000)
    with Service(master.address, timeout=SOON) as service:

        def names() -> set[str]:
            return {server["name"] for server in service.state()["servers"]}

        until(lambda: names() == {"one", "two", "three"}, lambda: str(names()))
        with service.shuffle(2, 4, ROWS) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            assert script("drain", "-", hosts="one") == {"one": "left"}
            until(lambda: names() == {"two", "three"}, lambda: str(names()))
            # What it had is at another one.
            assert script("stop", "-", hosts="two") == {"two": "stopped"}
            table.compare(shuffle)
        said = script("status", hosts)
        assert said["one"] == "does not run"
        assert "runs, process" in said["three"]
        assert script.status == 1
        assert "status: done on 1 of 3 hosts" in script.errors
        said = script("-p", "1", "-m", master.address, "start", hosts, *options)
        assert script.status == 0
        assert "started" in said["one"]
        assert "runs already" in said["three"]
        until(lambda: names() == {"one", "two", "three"}, lambda: str(names()))
        said = script("stop", hosts)
        assert (script.status, {*said.values()}) == (0, {"stopped"})
        until(lambda: names() == set(), "all have left")
    assert "does not run" in script("drain", "-", hosts="one")["one"]


def test_each_host_says_what_went_wrong(
    script: Script, start: Callable[..., Process], secret: Path, tmp_path: Path
) -> None:
    master = start("shuffle-master", "127.0.0.1:0")
    options = ("--", "--secret-file", secret, "--http", "none")
    said = script("-m", master.address, "start", "-", *options, hosts="one\nnowhere\n")
    assert script.status == 1
    assert "started" in said["one"]
    assert "Connection refused" in said["nowhere"]
    assert "start: done on 1 of 2 hosts" in script.errors
    said = script("-m", master.address, "start", "-", *options, "--wait", "5", hosts="two")
    assert "it has ended: " in said["two"]
    assert "--wait" in said["two"]
    script.options = (*script.options, "-w", "5")
    said = script("-m", "127.0.0.1:1", "start", "-", *options, hosts="two")
    assert "it has not joined within 5 s: Waiting for the shuffle master" in said["two"]
    script.options = (*script.options, "-t", "/nowhere/treadle")
    said = script("-m", master.address, "start", "-", *options, hosts="two")
    assert "it has ended" in said["two"]
    assert "/nowhere/treadle" in said["two"]
