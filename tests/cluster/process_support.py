"""`treadle scheduler` and `treadle worker` as processes of a test, and what is known of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import SOON, until

HERE = Path(__file__).parent


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone already. One that is to stop has stopped then."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    if number == signal.SIGSTOP:
        # On a busy machine its threads go on for a moment, and could answer.
        until(lambda: states_of(pid) <= {"T", "t", "Z", "X"}, f"process {pid} has stopped")


def states_of(pid: int) -> set[str]:
    """The states of a process's threads, as `ps` shows them; none if it is gone."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.add(thread.read_text().rpartition(") ")[2][0])
    return states


def kill(pid: int) -> None:
    send(pid, signal.SIGKILL)


class Process:
    """A command of `treadle`, and all that it has printed."""

    def __init__(
        self,
        *arguments: str,
        secret: Path,
        stdin: int = subprocess.DEVNULL,
        before: Callable[[], None] | None = None,
    ) -> None:
        has_pages = arguments[0] in ("scheduler", "shuffle-master", "shuffle-server")
        if has_pages and "--http-token-file" not in arguments:
            # It is shown on a terminal only.
            self.token = uuid.uuid4().hex
            token = secret.with_name(f"http-token-{self.token}")
            token.touch(mode=0o600)
            token.write_text(self.token)
            arguments = (*arguments, "--http-token-file", str(token))
        if arguments[0] == "worker" and not {"--nanny", "--supervised"} & {*arguments}:
            # Tests of a worker itself have its process, and see how it ends.
            arguments = (*arguments, "--no-nanny", "--death-timeout", "0.5")
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"TREADLE_SECRET_FILE": str(secret), "PYTHONPATH": path}

        def prepare() -> None:
            # pytest may have been started in the background, where interrupts are ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if before is not None:
                before()

        self.process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *arguments],
            env={**os.environ, **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=prepare,
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def told(self, prefix: str) -> str:
        """The rest of the first line that begins so, as soon as it is there."""

        def find() -> list[str]:
            return [line for line in self.lines if line.startswith(prefix)]

        until(lambda: find() or self.process.poll() is not None, f"{prefix} in {self.lines}")
        assert find(), self.output
        return find()[0].removeprefix(prefix).strip()

    @property
    def address(self) -> str:
        return self.told("listening at ")

    @property
    def http(self) -> str:
        return self.told("state and metrics at ").rstrip("/")

    @property
    def link(self) -> str:
        """The link to its pages, with its token."""
        return f"{self.http}/?token={self.token}"

    def page(self, path: str) -> str:
        """A page that it shows who has its link."""
        with urllib.request.urlopen(self.link.replace("/?", f"{path}?"), timeout=SOON) as page:
            text: str = page.read().decode()
        return text

    def state(self) -> dict[str, Any]:
        """The JSON state that it shows."""
        found: dict[str, Any] = json.loads(self.page("/json/state"))
        return found

    def send(self, number: int) -> None:
        if self.process.poll() is None:
            send(self.process.pid, number)

    def wait(self) -> int:
        """The exit status."""
        status = self.process.wait(2 * SOON)
        self.reader.join(SOON)
        return status

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SOON)
        self.reader.join(SOON)


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    # The latter where it ends between the two calls.
    except (FileNotFoundError, ProcessLookupError):
        return False


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
