"""Print the home of a Java for aarch64 that runs on x86_64: ``python packaging/emulated_java.py``.

The Java and the emulator, QEMU's, are Debian's. They are unpacked into ``.cache/aarch64``, and not installed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import debian

CACHE = Path(__file__).parents[1] / ".cache" / "aarch64"
RELEASE = "bookworm"
JAVA = ("openjdk-17-jre-headless", "libc6", "libgcc-s1", "libstdc++6", "zlib1g")
# Java's own helper that starts programs is for aarch64, too.
START = """#!/bin/sh
exec {emulator} -L {root} {java}/bin/java -Djdk.lang.Process.launchMechanism=FORK "$@"
"""


def home() -> Path:
    """The folder that ``JAVA_HOME`` names. Its ``bin/java`` starts the emulator."""
    home = CACHE / "home"
    if not (home / "bin" / "java").exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        root, emulator = CACHE / "root", CACHE / "emulator"
        debian.unpack(root, list(JAVA), RELEASE, "arm64")
        debian.unpack(emulator, ["qemu-user-static"], RELEASE)
        (java,) = (root / "usr" / "lib" / "jvm").glob("java-17-openjdk-*")
        program = emulator / "usr" / "bin" / "qemu-aarch64-static"
        start = START.format(emulator=program, root=root, java=java)
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java.new").write_text(start)
        (home / "bin" / "java.new").chmod(0o755)
        (home / "bin" / "java.new").rename(home / "bin" / "java")
    return home


if __name__ == "__main__":
    print(home())
