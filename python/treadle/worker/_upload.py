"""Files that users upload to workers and to the scheduler."""

from __future__ import annotations

import os
import sys
from typing import Any

from distributed.utils import import_file, offload

__all__ = ["upload_file"]


async def upload_file(
    directory: str, filename: str, data: str | bytes, load: bool
) -> dict[str, Any]:
    """Write a file to a directory, and import it, or again, if ``load`` (.py, .zip, .egg).

    Raises
    ------
    ValueError
        The name is a path: it could point out of the directory.
    OSError
        The file cannot be written.
    Exception
        What importing it raises.
    """
    if os.path.basename(filename) != filename or filename in ("", ".", ".."):
        raise ValueError(f"upload a file by its name, not by a path: {filename!r}")
    path = os.path.join(directory, filename)
    content = data.encode() if isinstance(data, str) else data

    def write() -> None:
        os.makedirs(directory, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    await offload(write)
    if directory not in sys.path:
        # What is pickled by reference to the module is unpickled later.
        sys.path.insert(0, directory)
    if load:
        import_file(path)
    return {"status": "OK", "nbytes": len(content)}
