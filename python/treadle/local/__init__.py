"""Parts of the schedulers in this process (``treadle.threaded``, ``sync``, ``processes``), and ``treadle.install``."""

from __future__ import annotations

from treadle.errors import _own_frames

_own_frames.shorten(_own_frames.LOCAL)
