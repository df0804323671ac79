"""Install wheels into empty environments of their Pythons, and use them as a newcomer does.

``python packaging/try_wheels.py FOLDER [VERSION …]`` tries the wheels of this machine's architecture in a
folder: the ones of the versions, or all that are there. Each has to install without a compiler, run the first example of the
README and a local cluster, and ``treadle demo``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interpreters

LIMIT = 600
QUICKSTART = """
import dask.array as da
import treadle

if __name__ == "__main__":
    treadle.install()
    assert da.ones(1000, chunks=2).sum().compute() == 1000
    with treadle.Client(workers=2) as client:
        assert client.submit(sum, [1, 2, 3]).result() == 6
        assert da.ones(1000, chunks=2).sum().compute() == 1000
        print(treadle.__version__, client)
"""


def version_of(wheel: Path) -> str:
    tag = wheel.name.split("-")[2].removeprefix("cp")
    return f"{tag[0]}.{tag[1:]}"


def without_compilers(folder: Path) -> str:
    """A search path on which nothing builds an extension."""
    for program in ("cc", "gcc", "g++", "clang", "cargo", "rustc"):
        trap = folder / program
        trap.write_text("#!/bin/sh\necho $0: a wheel needs no compiler >&2\nexit 1\n")
        trap.chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def run(*command: str | Path, folder: Path, path: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        list(map(str, command)),
        check=True,
        cwd=folder,
        timeout=LIMIT,
        env={**environment, "PATH": path},
    )


def use(wheel: Path, interpreter: Path, folder: Path) -> None:
    traps = folder / "traps"
    traps.mkdir()
    path = without_compilers(traps)
    environment = folder / "environment"
    started = time.monotonic()
    # Debian's interpreters have no pip of their own.
    run(interpreter, "-m", "venv", "--without-pip", environment, folder=folder, path=path)
    python = environment / "bin" / "python"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--quiet",
        "--disable-pip-version-check",
    )
    # What the demo needs beside the wheel is one source archive of plain Python.
    run(*pip, "install", f"{wheel}[cluster,demo]", folder=folder, path=path)
    installed = time.monotonic()
    (folder / "quickstart.py").write_text(QUICKSTART, encoding="utf-8")
    run(python, "quickstart.py", folder=folder, path=path)
    used = time.monotonic()
    run(environment / "bin" / "treadle", "demo", folder=folder, path=path)
    print(
        f"--- {wheel.name}: installed in {installed - started:.0f} s, quickstart {used - installed:.1f} s, "
        f"demo {time.monotonic() - used:.0f} s",
        flush=True,
    )


def main() -> int:
    folder, *chosen = sys.argv[1:]
    wheels = sorted(Path(folder).resolve().glob(f"treadle-*{platform.machine()}.whl"))
    wheels = [wheel for wheel in wheels if not chosen or version_of(wheel) in chosen]
    others = set(chosen) - {version_of(wheel) for wheel in wheels}
    # `wheels.py` says which Pythons cannot be had, and builds nothing for them.
    missing = {version for version in others if interpreters.find(version) is not None}
    if missing or not wheels:
        print(f"no wheel in {folder} for {sorted(missing) or 'this machine'}: make wheels")
        return 1
    for wheel in wheels:
        interpreter = interpreters.find(version_of(wheel))
        if interpreter is None:
            print(f"--- {wheel.name}: no such Python here")
            return 1
        place = Path(tempfile.mkdtemp(prefix="treadle-wheel-"))
        try:
            use(wheel, interpreter, place)
        finally:
            shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
