"""The coordinator's packages are an extra: without them, its tests are not collected."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = (
    "sqlalchemy",
    "fastapi",
    "uvicorn",
    "jinja2",
    "httptools",
    "httpx2",
    "hypothesis",
    "lz4",
    "zstandard",
)

if all(map(find_spec, NEEDED)):
    from hypothesis import settings

    from served_support import served  # noqa: F401

    # The same cases each time, at any speed; --hypothesis-profile=default tries others.
    settings.register_profile("same", derandomize=True, deadline=None)
    settings.load_profile("same")
else:
    collect_ignore_glob = ["test_*.py"]
