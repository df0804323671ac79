"""How many bytes are copied in user space, counted in both processes.

``transfer_copies.c`` is preloaded, and counts what ``memcpy`` and ``memmove`` move. What the kernel
copies to and from its sockets is not in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from transfer_support import LIMIT

from treadle import _core

BYTES = 100_000_000

# Both sides do everything twice: the first time memory and code are cold.
_PRELUDE = f"""
import ctypes, sys
import numpy as np
from treadle import transfer
from treadle.common._shared_memory import empty
copied = ctypes.CDLL(None).take_copied
copied.restype = ctypes.c_ulonglong
options = dict(prefetch=0, stripes=1, tls=sys.argv[2] or None)
BYTES = {BYTES}
"""

_SENDER = (
    _PRELUDE
    + """
listener = transfer.listen(**options)
print(listener.address, flush=True)
conn = listener.accept(20)
obj = {make}
for _ in range(2):
    conn.recv()
    copied()
    conn.send(obj)
    count = copied()
print(count, conn.stats()["bytes_shared"])
"""
)

_RECEIVER = (
    _PRELUDE
    + """
conn = transfer.connect(sys.argv[1], **options)
target = np.zeros(BYTES, np.uint8)
for _ in range(2):
    conn.send("go")
    copied()
    received = {receive}
    count = copied()
    del received
print(count, conn.stats()["bytes_shared"])
"""
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("copies") / "copies.so"
    source = Path(__file__).with_name("transfer_copies.c")
    flags = ["-O2", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(path), "-ldl"], check=True)
    return path


Count = Callable[..., tuple[list[int], list[int]]]


@pytest.fixture
def count(library: Path) -> Count:
    """Send an object; return bytes that the sender and the receiver copied, and shared."""

    def count(make: str, receive: str, tls: str = "") -> tuple[list[int], list[int]]:
        def start(code: str, address: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-c", code, address, tls],
                env={**os.environ, "LD_PRELOAD": str(library)},
                stdout=subprocess.PIPE,
                text=True,
            )

        sender = start(_SENDER.replace("{make}", make), "")
        assert sender.stdout is not None
        receiver = start(_RECEIVER.replace("{receive}", receive), sender.stdout.readline().strip())
        outputs = [process.communicate(timeout=3 * LIMIT)[0] for process in (sender, receiver)]
        assert sender.returncode == receiver.returncode == 0
        copied, shared = zip(*[map(int, output.split()) for output in outputs], strict=True)
        return list(copied), list(shared)

    return count


ONE_PERCENT = BYTES // 100

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch: make test-tensors")

RECORDS = "np.zeros(BYTES // 8, 'i4,f4')"


@pytest.mark.parametrize(
    ("make", "receive"),
    [
        ("np.zeros(BYTES, np.uint8)", "conn.recv_into(target)"),
        ("np.zeros(BYTES, np.uint8)", "conn.recv()"),
        ("np.zeros((1000, BYTES // 8000)).T", "conn.recv()"),
        (RECORDS, "conn.recv()"),
        ("{'a': [np.zeros(BYTES, np.uint8)]}", "conn.recv()"),
        ("__import__('pyarrow').array(np.zeros(BYTES // 8))", "conn.recv()"),
        ("__import__('pandas').DataFrame(np.zeros((BYTES // 80, 10)))", "conn.recv()"),
        ("memoryview(bytes(BYTES))", "conn.recv()"),
        *(
            pytest.param(make, receive, marks=NEEDS_TORCH)
            for make, receive in [
                ("__import__('torch').zeros(BYTES // 4)", "conn.recv()"),
                ("__import__('torch').zeros(BYTES // 4).t().view(2, -1).t()", "conn.recv()"),
                (
                    "__import__('torch').zeros(BYTES, dtype=__import__('torch').uint8)",
                    "conn.recv_into(target)",
                ),
                (
                    "[__import__('torch').zeros(BYTES // 40).bfloat16() for _ in range(20)]",
                    "conn.recv()",
                ),
                ("{'w': __import__('torch').nn.Linear(5000, 5000)}", "conn.recv()"),
            ]
        ),
    ],
)
def test_nothing_is_copied(count: Count, make: str, receive: str) -> None:
    (sent, received), _ = count(make, receive)
    assert sent < ONE_PERCENT
    assert received < ONE_PERCENT


def test_bytes_are_copied_once(count: Count) -> None:
    (sent, received), _ = count("bytes(BYTES)", "conn.recv()")
    assert sent < ONE_PERCENT
    assert BYTES <= received < BYTES + ONE_PERCENT


def test_what_is_not_contiguous_is_copied_once_by_numpy(count: Count) -> None:
    make = "np.zeros((1000, 2, BYTES // 1000), np.uint8)[:, 0]"
    (sent, received), _ = count(make, "conn.recv()")
    assert BYTES <= sent < BYTES + ONE_PERCENT
    assert received < ONE_PERCENT


def test_shared_memory_is_not_even_sent(count: Count) -> None:
    make = "empty(BYTES, np.uint8)"
    copied, shared = count(make, "conn.recv()")
    assert max(copied) < ONE_PERCENT
    assert shared == [2 * BYTES, 2 * BYTES]
    (sent, received), _ = count(make, "conn.recv_into(target)")
    assert sent < ONE_PERCENT
    assert BYTES <= received < BYTES + ONE_PERCENT


def test_tls_copies_into_records_and_out_of_them(count: Count, tmp_path: Path) -> None:
    """The ciphers work in place.

    A third "copy" of the receiver is ``aws-lc-rs`` moving what it decrypted to where it is, which is
    not in builds with link-time optimisation. What a ``read`` brought of the next record is moved, too:
    a few percent, or up to all but one of the bytes of a record where records are of unlike lengths.
    """
    _core.create_certs(str(tmp_path), ["node"], 1, False)
    (sent, received), _ = count(
        "np.zeros(BYTES, np.uint8)", "conn.recv_into(target)", str(tmp_path / "node")
    )
    assert abs(sent - BYTES) < ONE_PERCENT
    assert 2 * BYTES - ONE_PERCENT < received < 4 * BYTES
