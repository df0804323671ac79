"""The Python blocks of the pages for users run, on real clusters on loopback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import blocks

HERE = Path(__file__).parent
PAGES = {str(path.relative_to(blocks.ROOT)): path for path in blocks.user_pages()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    # A process of its own: a page installs Treadle, and has the definitions of a script.
    run = subprocess.run(
        [sys.executable, HERE / "blocks.py", PAGES[page]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=360,
    )
    assert run.returncode == 0, run.stdout


def test_settings_are_those_of_pages() -> None:
    import pages

    assert set(pages.SETTINGS) <= set(PAGES)
