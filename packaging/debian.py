"""Unpack packages of Debian into a folder: those of another release or architecture, without installing any.

It needs ``apt-get``, ``dpkg-deb`` and Debian's keyring.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Seconds for a download.
_PATIENCE = 300


def reachable() -> bool:
    """Whether this machine has what unpacking needs."""
    return bool(KEYRING.exists() and shutil.which("apt-get") and shutil.which("dpkg-deb"))


def unpack(place: Path, packages: list[str], release: str, architecture: str | None = None) -> None:
    """Unpack packages into a folder, by default of this machine's architecture. Their dependencies are not followed.

    Raises ``subprocess.SubprocessError`` where they cannot be had.
    """
    apt = place / "apt"
    archives = place / "archives"
    for folder in (apt / "lists" / "partial", apt / "cache" / "archives" / "partial", archives):
        folder.mkdir(parents=True)
    # The machine's own packages do not matter.
    (apt / "status").touch()
    (apt / "sources.list").write_text(
        f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {release} main\n"
    )
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}";\nDir::State::status "{apt}/status";\nDir::State::Lists "{apt}/lists";\n'
        f'Dir::Cache "{apt}/cache";\nDir::Etc::sourcelist "{apt}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\nAPT::Sandbox::User "root";\nAcquire::Retries "3";\n'
        + (f'APT::Architecture "{architecture}";\nAPT::Architectures "";\n' if architecture else "")
    )
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for command in (["update"], ["download", *packages]):
        subprocess.run(
            ["apt-get", "--quiet=2", *command],
            check=True,
            env=environment,
            cwd=archives,
            timeout=_PATIENCE,
        )
    for archive in archives.iterdir():
        subprocess.run(["dpkg-deb", "--extract", archive, place], check=True)
    shutil.rmtree(apt)
    shutil.rmtree(archives)
