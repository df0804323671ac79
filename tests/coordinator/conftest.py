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

if not all(map(find_spec, NEEDED)):
    collect_ignore_glob = ["test_*.py"]
