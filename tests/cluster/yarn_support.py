"""A YARN cluster of real daemons: a ResourceManager on one host, a NodeManager on each of the others.

Hosts are network namespaces with names of their own. All see the same files, as on a shared file system.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from namespaces_support import Hosts, OwnFiles, hosts
from process_support import kill
from waiting import SOON, until

_CLONE_NEWUTS = 0x4000000
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
_RESOURCES = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_CLIENT = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
# What Hadoop asks for from Java 17 on.
_OPENS = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
_LOG = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def properties(values: Mapping[str, str]) -> str:
    """Text of a file of Hadoop's configuration."""
    lines = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in values.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"


class Yarn:
    """The cluster. Host 0 has the ResourceManager and ZooKeeper, the others have nodes."""

    def __init__(self, jars: Path, directory: Path, network: Hosts, stack: ExitStack) -> None:
        self._directory = directory
        self._network = network
        self._stack = stack
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"yarn-{number}" for number in range(len(network.addresses))]
        self._etc_hosts = directory / "hosts"
        pairs = zip(network.addresses, self.names, strict=True)
        known = [f"{address} {name}\n" for address, name in pairs]
        self._etc_hosts.write_text("".join(["127.0.0.1 localhost\n", *known]))
        self._configuration = directory / "configuration"
        self._configuration.mkdir()
        self._classes = f"{self._configuration}:{jars}/*"
        self._configure(jars)
        # Where YARN's own commands find what they upload.
        self._libraries = f"-Dservice.libdir={jars}"

    def _configure(self, jars: Path) -> None:
        work = self._directory / "work"
        # Each node's own: a property of its process.
        node = f"{work}/${{treadle.node}}"
        (self._configuration / "core-site.xml").write_text(
            properties({"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{node}/tmp"})
        )
        (self._configuration / "yarn-site.xml").write_text(
            properties(
                {
                    "yarn.resourcemanager.hostname": self.names[0],
                    "yarn.webapp.api-service.enable": "true",
                    "yarn.resourcemanager.placement-constraints.handler": "placement-processor",
                    "hadoop.registry.zk.quorum": f"{self.names[0]}:2181",
                    "yarn.scheduler.minimum-allocation-mb": "256",
                    "yarn.nodemanager.resource.memory-mb": "4096",
                    "yarn.nodemanager.resource.cpu-vcores": "4",
                    "yarn.nodemanager.vmem-check-enabled": "false",
                    "yarn.nodemanager.local-dirs": f"{node}/disk-1,{node}/disk-2",
                    "yarn.nodemanager.log-dirs": f"{node}/logs",
                    # Any free space will do for a test.
                    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
                    # What a server has to drain.
                    "yarn.nodemanager.sleep-delay-before-sigkill.ms": f"{SOON * 1000}",
                    # Otherwise libraries are left at a fixed place of the file system.
                    "yarn.admin.acl": "nobody",
                    "yarn.service.base.path": f"{work}/services",
                    "yarn.service.am-resource.memory": "512",
                    "yarn.service.am.java.opts": f"-Xmx256m {'='.join(_OPENS)}",
                    "yarn.node-labels.fs-store.root-dir": f"{node}/labels",
                    "yarn.node-attribute.fs-store.root-dir": f"{node}/attributes",
                }
            )
        )
        (self._configuration / "capacity-scheduler.xml").write_text(
            properties(
                {
                    "yarn.scheduler.capacity.root.queues": "default",
                    "yarn.scheduler.capacity.root.default.capacity": "100",
                    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
                }
            )
        )
        (self._configuration / "log4j.properties").write_text(_LOG)

    def enter(self, host: int) -> Callable[[], None]:
        """Return what has a child process be on a host, before it runs anything."""
        network = self._network.enter(host)
        files = OwnFiles({"/etc/hosts": self._etc_hosts})
        libc, name = ctypes.CDLL(None, use_errno=True), self.names[host]

        def enter() -> None:
            network()
            files()
            if libc.unshare(_CLONE_NEWUTS):
                raise OSError(ctypes.get_errno(), "this user may not have a host name of its own")
            socket.sethostname(name)

        return enter

    def _java(self, host: int, name: str, *options: str) -> list[str]:
        limits = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        where = f"-Dtreadle.node={name}"
        return ["java", *limits, *_OPENS, where, self._libraries, "-cp", self._classes, *options]

    def log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def begin(self, host: int, name: str, *options: str) -> None:
        """Start a daemon."""
        with self.log(name).open("wb") as log:
            daemon = subprocess.Popen(
                self._java(host, name, *options),
                env={**os.environ, "HADOOP_CONF_DIR": str(self._configuration)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                preexec_fn=self.enter(host),
            )

        def end() -> None:
            # A node that is told to end waits for its containers, which have as long to drain.
            daemon.kill()
            daemon.wait(SOON)

        self._stack.callback(end)
        self._daemons[name] = daemon

    def check(self) -> None:
        """Fail if a daemon has ended."""
        for name, daemon in self._daemons.items():
            assert daemon.poll() is None, f"{name}: {self.log(name).read_text()[-4000:]}"

    def processes(self, host: int) -> list[int]:
        """The ids of all processes on a host."""
        return self._network.processes(host)

    def errors(self) -> str:
        """What containers printed, the end of each."""
        paths = sorted((self._directory / "work").glob("*/logs/*/*/std*.txt"))
        return "\n".join(f"{path}:\n{path.read_text()[-1000:]}" for path in paths)

    def run(self, *arguments: str | Path) -> str:
        """Run `yarn app`; return what it printed."""
        done = subprocess.run(
            self._java(0, "client", _CLIENT, "app", *map(str, arguments)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * SOON,
            cwd=self._directory,
            preexec_fn=self.enter(0),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rest(self, path: str, *body: str | Path) -> dict[str, Any]:
        """Ask YARN's API for services, or give it a file; return what it answers."""
        url = f"http://{self.names[0]}:8088/app/v1/services{path}?user.name=root"
        kind = ("-H", "Content-Type: application/json")
        data = [word for path in body for word in ("--data", f"@{path}")]
        done = subprocess.run(
            ["curl", "--fail-with-body", "--silent", "--show-error", *kind, *data, url],
            capture_output=True,
            text=True,
            timeout=2 * SOON,
            preexec_fn=self.enter(0),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def yarn(jars: Path, directory: Path, nodes: int) -> Iterator[Yarn | None]:
    """Run a cluster; None where this user may not make hosts."""
    with hosts(nodes + 1, directory) as network, ExitStack() as stack:
        if network is None:
            yield None
            return
        made = Yarn(jars, directory, network, stack)
        made.begin(0, "zookeeper", _ZOOKEEPER, "2181", str(directory / "zookeeper"))
        made.begin(0, "resources", _RESOURCES)
        # Containers outlive what started them.
        for number in range(nodes + 1):
            stack.callback(end_all, network, number)
        for number in range(1, nodes + 1):
            made.begin(number, f"node-{number}", _NODE)

        def registered() -> bool:
            log = made.log("resources").read_text()
            made.check()
            return log.count("registered with capability") == nodes

        until(registered, lambda: made.log("resources").read_text()[-4000:], 4 * SOON)
        yield made


def end_all(network: Hosts, number: int) -> None:
    """End all processes on a host."""

    def ended() -> bool:
        processes = network.processes(number)
        for process in processes:
            kill(process)
        return not processes

    until(ended, lambda: f"processes {network.processes(number)} have ended")
