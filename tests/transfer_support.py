"""Pairs of connections for the tests of :mod:`treadle.transfer`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from treadle import transfer

# Long enough for a busy machine, short enough for a test that hangs.
LIMIT = 20.0

_PRELUDE = """
import os, signal, sys, threading, time
# Whoever runs the tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
from treadle import transfer
conn = transfer.connect(sys.argv[1])
"""


@contextmanager
def pair(**options: Any) -> Iterator[tuple[transfer.Connection, transfer.Connection]]:
    """Both ends of a connection within this process."""
    with (
        transfer.listen(**options) as listener,
        transfer.connect(listener.address, **options) as one,
        listener.accept(LIMIT) as other,
    ):
        yield one, other


class Peer:
    """A process at the other end of a connection.

    It runs ``code``, in which ``conn`` is its end. What it prints can be read from ``process``.
    """

    def __init__(self, code: str, env: dict[str, str] | None = None, **options: Any) -> None:
        self._listener = transfer.listen(**options)
        path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            # Unbuffered: a program may end by os._exit.
            [sys.executable, "-u", "-c", _PRELUDE + textwrap.dedent(code), self._listener.address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            # Classes of the tests are importable there, too.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **(env or {})},
        )
        try:
            self.conn = self._listener.accept(LIMIT)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def finish(self) -> str:
        """Wait until the process has ended in order; return what it printed."""
        output, _ = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, self.process.returncode
        return output

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.conn.close()
        self._listener.close()


ECHO = """
while True:
    try:
        obj = conn.recv()
    except EOFError:
        break
    except Exception as error:
        obj = error
    conn.send(obj)
"""


@contextmanager
def echoing() -> Iterator[transfer.Connection]:
    """A connection to a process that sends back what it gets."""
    with Peer(ECHO) as peer:
        yield peer.conn
        peer.conn.close()
        peer.finish()


def exchanged(conn: transfer.Connection, obj: Any) -> Any:
    """What comes back of an object."""
    sent = conn.start_send(obj)
    received = conn.recv(timeout=LIMIT)
    sent.result(LIMIT)
    return received
