"""Makes reads or writes of files fail with EIO, in a process with this directory in ``PYTHONPATH``.

The kernel itself answers so, by a filter of system calls of all threads (seccomp): the process calls it as it
would if its disk were broken, without the C library between. Only calls that name a place in a file fail, which
are those of rows. See ``broken_disks_support.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
import time
from pathlib import Path

# The numbers of the system calls.
CALLS = {
    "x86_64": {"read": (17, 295, 327), "write": (18, 296, 328)},
    "aarch64": {"read": (67, 69, 286), "write": (68, 70, 287)},
}
SECCOMP = {"x86_64": 317, "aarch64": 277}


class Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    ]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("first", ctypes.POINTER(Instruction))]


def fail(kinds: list[str]) -> None:
    machine = platform.machine()
    numbers = [number for kind in kinds for number in CALLS[machine][kind]]
    load, equal, answer = 0x20, 0x15, 0x06
    allow, error = 0x7FFF0000, 0x50000 | errno.EIO
    steps = [Instruction(load, 0, 0, 0)]
    steps += [Instruction(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [Instruction(answer, 0, 0, allow), Instruction(answer, 0, 0, error)]
    program = Program(len(steps), (Instruction * len(steps))(*steps))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, filter_mode, of_all_threads = 38, 1, 1
    done = libc.prctl(no_new_privileges, 1, 0, 0, 0)
    done |= libc.syscall(SECCOMP[machine], filter_mode, of_all_threads, ctypes.byref(program))
    if done:
        raise OSError(ctypes.get_errno(), "seccomp")


def watch(wish: Path) -> None:
    while True:
        time.sleep(0.01)
        if wish.exists():
            fail(wish.read_text().split())
            wish.unlink()


if place := os.environ.get("TREADLE_BROKEN_DISKS"):
    wish = Path(place, str(os.getpid()))
    threading.Thread(target=watch, args=(wish,), daemon=True).start()
