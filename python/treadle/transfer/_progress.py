"""Drawing how far a transfer is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["bar"]


def bar(text: str) -> Callable[[int, int], None]:
    """Return a callable that draws ``(done, total)`` bytes, until both are equal."""
    try:
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn
    except ImportError as error:
        raise ImportError(
            "progress=True draws with rich, which is not installed: `pip install rich`, or give "
            "a callable"
        ) from error
    progress = Progress(
        "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), transient=False
    )
    task = progress.add_task(text, total=None)

    def draw(done: int, total: int) -> None:
        if not progress.live.is_started:
            progress.start()
        progress.update(task, completed=done, total=total)
        if done == total:
            progress.stop()

    return draw
