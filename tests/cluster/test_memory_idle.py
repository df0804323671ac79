"""Values that an idle worker lets go of are freed at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_support import AGAINST
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it is Treadle's own")


class Marked:
    """Something that leaves a mark when it is freed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark
        self.content = bytes(1 << 20)

    def __del__(self) -> None:
        self.mark.touch()


def test_a_released_value_is_freed_without_another_task(in_process_client, tmp_path: Path):
    mark = tmp_path / "freed"
    future = in_process_client.submit(Marked, mark, pure=False)
    in_process_client.submit(len, "x", pure=False).result()
    until(lambda: future.status == "finished", "it is there")
    assert not mark.exists()
    future.release()
    until(mark.exists, "it is freed")
