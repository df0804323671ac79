"""etcd and ZooKeeper as processes of a test. `make test-registries` says where they are."""

from __future__ import annotations

import os
import socket
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from ports import free_port
from waiting import until


class RegistryProcess(ABC):
    """A registry that can be killed, and started again with what it had."""

    variable: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = self.url_of(self.port)
        self.restart()

    @abstractmethod
    def url_of(self, port: int) -> str: ...

    @abstractmethod
    def command(self) -> list[str]: ...

    @property
    def place(self) -> str:
        return os.environ[self.variable]

    def restart(self) -> None:
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command(), stdin=nothing, stdout=nothing, stderr=nothing
        )
        until(self.listens, f"{self.url} listens")

    def listens(self) -> bool:
        assert self.process.poll() is None
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Etcd(RegistryProcess):
    """One member of etcd."""

    variable = "TREADLE_TEST_ETCD"

    def __init__(self, directory: Path) -> None:
        self.peer = free_port()
        super().__init__(directory)

    def url_of(self, port: int) -> str:
        return f"etcd://127.0.0.1:{port}/treadle/test"

    def command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer}"
        options = {
            "data-dir": str(self.directory / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        return [self.place, *(f"--{name}={value}" for name, value in options.items())]


class ZooKeeper(RegistryProcess):
    """One server of ZooKeeper."""

    variable = "TREADLE_TEST_ZOOKEEPER"

    def url_of(self, port: int) -> str:
        return f"zk://127.0.0.1:{port}/treadle/test"

    def command(self) -> list[str]:
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"dataDir={self.directory / 'zookeeper'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=2000\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", "-Xmx256m", "-cp", f"{self.place}/*", main, str(settings)]
