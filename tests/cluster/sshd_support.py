"""An `sshd` of a test alone: on a loopback port, with keys of its own."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from namespaces_support import OwnFiles
from ports import free_port
from waiting import SOON, until

# What is asked of the server: it lets in whoever has the key, and nobody else.
_CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {host_key}
AuthorizedKeysFile {authorized}
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv {environment}
"""


@dataclass(frozen=True)
class Sshd:
    """A server that runs, and what lets this user in."""

    port: int
    key: Path

    @property
    def options(self) -> dict[str, object]:
        """What asyncssh needs to connect."""
        return {
            "port": self.port,
            "username": getpass.getuser(),
            "client_keys": [str(self.key)],
            "known_hosts": None,
        }


def sshd_program() -> str | None:
    """The path of `sshd`: `TREADLE_SSHD` names one, which is not installed in the system."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return os.environ.get("TREADLE_SSHD") or shutil.which("sshd", path=path)


@contextmanager
def sshd(program: str, directory: Path) -> Iterator[Sshd]:
    """Run a server that starts commands with this process's Python path."""
    host_key, key = directory / "host", directory / "client"
    for path in (host_key, key):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True, timeout=SOON)
    authorized = directory / "authorized"
    shutil.copy(key.with_suffix(".pub"), authorized)
    port = free_port()
    configuration = directory / "sshd_config"
    values = {"port": port, "host_key": host_key, "authorized": authorized}
    environment = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    configuration.write_text(_CONFIGURATION.format(**values, environment=environment))
    log = directory / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [os.path.realpath(program), "-D", "-e", "-f", str(configuration)],
            stderr=output,
            preexec_fn=_apart(directory) if os.geteuid() == 0 else None,
        )
    try:
        until(lambda: _listens(port) or server.poll() is not None, "sshd listens")
        assert server.poll() is None, log.read_text()
        yield Sshd(port, key)
    finally:
        server.terminate()
        server.wait(SOON)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _apart(directory: Path) -> OwnFiles:
    """Give root's `sshd` what a system that runs one has."""
    run = directory / "run"
    (run / "sshd").mkdir(parents=True, mode=0o755)
    binds = {"/run": run}
    try:
        pwd.getpwnam("sshd")
    except KeyError:
        binds["/etc/passwd"] = users = directory / "passwd"
        line = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        users.write_text(Path("/etc/passwd").read_text() + line)
    return OwnFiles(binds)
