"""Scheduler files: where a scheduler is, and what lets its user in.

Whoever may write such a file decides whom its readers trust, so it is written for this user alone,
and read only if nobody else can have written it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["SchedulerFile", "UnfinishedError", "read", "write"]

# Bytes of the longest file that is read: a scheduler file has a few hundred.
_LONGEST = 1 << 20


class UnfinishedError(ValueError):
    """Whoever writes the scheduler file may not be through: wait for it as for a missing one."""


class SchedulerFile(NamedTuple):
    """What a scheduler file says."""

    address: str
    #: Where the secret is.
    secret_file: str | None = None
    #: The prefix of certificates, as `--tls` takes it.
    tls: str | None = None
    #: The id of the cluster: whoever listens at the address in another one is not meant.
    cluster: str | None = None


def write(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write a scheduler file for this user alone, which appears at once or not at all."""
    path = os.fspath(path)
    text = json.dumps(values, indent=2) + "\n"
    # Mode 0600, under a name that nobody can have guessed, and never through a link.
    try:
        descriptor, unfinished = tempfile.mkstemp(
            prefix=f".{os.path.basename(path)}-", dir=os.path.dirname(path) or "."
        )
    except OSError as error:
        # Nobody has named the file that could not be made.
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # It replaces a link, and does not follow it.
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def read(path: str | os.PathLike[str]) -> SchedulerFile:
    """Return what a scheduler file says.

    Raises
    ------
    PermissionError
        Another user may have written it, or can read what should be kept from others.
    UnfinishedError
        The file may not be one yet.
    ValueError
        The file is none.
    """
    path = os.fspath(path)
    # Without NONBLOCK, opening a pipe that somebody put there would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # What is checked is what was opened, not what the path leads to a moment later.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no regular file: name the scheduler's file")
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(
                f"{path} belongs to user id {status.st_uid}, and this process runs as "
                f"{os.geteuid()}: it could lead to a scheduler of theirs. If you trust it, copy it "
                "to a file of your own"
            )
        if status.st_mode & 0o022:
            raise PermissionError(
                f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}), so it "
                f"may lead anywhere: check what it says, and run `chmod 600 {path}`"
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            text = file.read(_LONGEST + 1)
    finally:
        os.close(descriptor)
    try:
        values = json.loads(text) if len(text) <= _LONGEST else None
    except ValueError as error:
        # No JSON, or no text: a part of it.
        raise UnfinishedError(f"{path} is no scheduler file, or none yet: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("address"), str):
        raise ValueError(f"{path} is no scheduler file: it names no address")
    if status.st_mode & 0o044 and "token=" in urlsplit(str(values.get("http"))).query:
        raise PermissionError(
            f"{path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o}), and holds the "
            f"token of the scheduler's pages: run `chmod 600 {path}`, and start the scheduler anew "
            "if others use this machine"
        )
    optional = (_text(values, name) for name in SchedulerFile._fields[1:])
    return SchedulerFile(values["address"], *optional)


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None
