"""The one exception that ends a demo with a message instead of a traceback."""

INSTALL_HINT = "run `make demo`, or `pip install '.[demo]'` in a clone of Treadle"


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def missing(package: str) -> DemoError:
    """The error for a package that the demo needs and that is not installed."""
    return DemoError(
        f"the demo needs the package {package!r}, which is not installed: {INSTALL_HINT}"
    )
