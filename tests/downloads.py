"""Servers that tests run against, which are fetched or built once: what their scripts share."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def digest(*paths: Path) -> str:
    """Return a digest of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def need(program: str, package: str) -> None:
    """Fail with what to install, where a program is missing."""
    if shutil.which(program) is None:
        raise SystemExit(f"{program} is missing (Debian and Ubuntu: apt install {package})")


def jars(sources: Path, folder: Path, *options: str) -> Path:
    """Return the folder with the jars of a ``pom.xml``, each of which has its digest in ``SHA256SUMS`` beside it.

    ``folder`` gets the digest of those in its name. ``options`` are Maven's.
    """
    sums = sources / "SHA256SUMS"
    folder = folder.with_name(f"{folder.name}-{digest(sums)[:16]}")
    if not folder.exists():
        need("mvn", "maven")
        made = folder.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        copy = ("dependency:copy-dependencies", *options, f"-DoutputDirectory={made}")
        command = ("mvn", "-q", "-B", "-f", sums.with_name("pom.xml"), *copy)
        subprocess.run(command, check=True)
        made.rename(folder)
    expected = dict(line.split()[::-1] for line in sums.read_text().splitlines())
    found = {jar.name: digest(jar) for jar in folder.iterdir()}
    if found != expected:
        wrong = sorted({name for name, _ in found.items() ^ expected.items()})
        shutil.rmtree(folder)
        raise SystemExit(f"not the files of {sums.relative_to(ROOT)}: {', '.join(wrong)}")
    return folder
