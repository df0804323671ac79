"""Build the jar for Spark that is published: ``python packaging/jar.py``; needs a JDK (17) and Maven.

It has the native library of each architecture, which runs wherever the C library is at least as old as
that of the wheels: the linker is Zig's, through ``cargo-zigbuild``. The jar is left in ``dist/``.
``make spark`` builds one for this machine alone, in less time.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from wheels import ARCHITECTURES, DIST, GLIBC, PROGRAMS, ROOT, run

LIBRARY = "libtreadle_shuffle_jvm.so"
FOLDER = ROOT / ".cache" / "jar"


def native(architecture: str) -> None:
    """Compile the native library of an architecture, without its symbols."""
    target = f"{architecture}-unknown-linux-gnu"
    run("rustup", "target", "add", target)
    run(
        *(PROGRAMS / "cargo-zigbuild", "zigbuild", "--locked", "--profile", "dist"),
        *("-p", "treadle-shuffle-jvm", "--target", f"{target}.{GLIBC.replace('_', '.')}"),
        CARGO_PROFILE_DIST_STRIP="symbols",
    )
    to = FOLDER / "libraries" / f"linux-{architecture}"
    to.mkdir(parents=True)
    shutil.copy(ROOT / "target" / target / "dist" / LIBRARY, to / LIBRARY)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for architecture in ARCHITECTURES:
        native(architecture)
    (jars,) = ROOT.glob(".venv-spark-3.5.9/lib/python3*/site-packages/pyspark/jars")
    run(
        *("mvn", "-q", "-B", "-f", ROOT / "spark" / "pom.xml"),
        *(f"-Dspark.jars={jars}", f"-Dbuild.folder={FOLDER}", "package"),
    )
    DIST.mkdir(exist_ok=True)
    jar = Path(shutil.copy(FOLDER / "treadle-spark.jar", DIST))
    with zipfile.ZipFile(jar) as packed:
        for architecture in ARCHITECTURES:
            size = packed.getinfo(f"native/linux-{architecture}/{LIBRARY}").file_size
            print(f"{jar.name}: {architecture}, {size / 1e6:.1f} MB unpacked", flush=True)


if __name__ == "__main__":
    main()
