"""Make an environment with another release of Dask and distributed: ``other_dask.py VERSION PATH``.

All else is that of the environment that runs this, whose files are linked instead of copied. Treadle is
the same, too, so nothing is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def make(version: str, path: Path) -> None:
    """Make the environment, in place of one that may be there."""
    shutil.rmtree(path, ignore_errors=True)
    subprocess.run(
        [sys._base_executable, "-m", "venv", "--without-pip", str(path)],  # type: ignore[attr-defined]
        check=True,
    )
    python = path / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    packages = Path(found.stdout.strip())
    shutil.rmtree(packages)
    shutil.copytree(sysconfig.get_path("purelib"), packages, copy_function=os.link, symlinks=True)
    if (share := Path(sys.prefix, "share")).is_dir():  # where Jupyter looks for kernels
        shutil.copytree(share, path / "share", copy_function=os.link, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    chosen = [f"dask=={version}", f"distributed=={version}"]
    # What they depend on is locked, and said to be too old or too new by `pip check`.
    subprocess.run([*pip, "install", "--quiet", "--no-deps", *chosen], check=True)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]).absolute())
