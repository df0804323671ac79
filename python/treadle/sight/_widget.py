"""A widget for notebooks: the overview and the task stream of a cluster in a cell."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

__all__ = ["SCRIPT", "views_of", "widget"]

# The two views in frames, one below the other. Saved widget state has their links, with the token.
SCRIPT = """
function render({ model, el }) {
  const fill = () => {
    el.replaceChildren(...model.get("views").map(({ link, height, title }) => {
      const frame = document.createElement("iframe");
      frame.src = link;
      frame.title = title;
      frame.className = "treadle-view";
      frame.referrerPolicy = "no-referrer";
      frame.style.cssText = `display: block; width: 100%; height: ${height}px; border: 0`;
      return frame;
    }));
  };
  model.on("change:views", fill);
  fill();
}
export default { render };
"""
_VIEWS = (("individual-overview", "Overview"), ("individual-stream", "Task stream"))


def widget(client: Any = None, *, height: int = 420) -> Any:
    """Return a widget that shows the overview and the task stream of a cluster, while it computes.

    The browser asks the scheduler itself, by the client's ``dashboard_link``: where that is not to be had from there,
    set ``distributed.dashboard.link`` to a proxy's address, such as ``/proxy/{port}/status``.

    Parameters
    ----------
    client
        A client of Treadle's, or a cluster; by default the current client.
    height
        Pixels of each of the two.

    Raises
    ------
    ImportError
        anywidget is not installed: ``pip install 'treadle[jupyter]'``.
    RuntimeError
        There are no pages.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError(
            f"a widget needs anywidget: pip install 'treadle[jupyter]' ({error})"
        ) from None
    if client is None:
        from distributed import get_client

        client = get_client()
    link: str | None = client.dashboard_link
    if link is None:
        raise RuntimeError("there are no pages to show: start the scheduler without --http none")

    class Dashboard(anywidget.AnyWidget):  # type: ignore[misc]
        """Views of a cluster."""

        _esm = SCRIPT
        views = traitlets.List().tag(sync=True)

    return Dashboard(views=views_of(link, height))


def views_of(link: str, height: int) -> list[dict[str, Any]]:
    """Return what the script shows: where each view is, how high it is, and what it is called."""
    return [
        {"link": _beside(link, page), "height": height, "title": title} for page, title in _VIEWS
    ]


def _beside(link: str, page: str) -> str:
    """Return the link to a page beside the first one."""
    parts = urlsplit(link)
    folder = parts.path.removesuffix("status").removesuffix("/")
    return parts._replace(path=f"{folder}/{page}").geturl()
