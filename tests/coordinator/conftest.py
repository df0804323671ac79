"""The coordinator's packages are an extra: without them, its tests are skipped."""

from __future__ import annotations

import pytest

for package in ("sqlalchemy", "fastapi", "uvicorn", "jinja2", "httpx2", "hypothesis", "zstandard"):
    pytest.importorskip(package)
