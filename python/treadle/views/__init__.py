"""ipyparallel's views of the engines of a cluster, on Treadle.

``treadle.Client`` makes them: ``client[:]``, ``client.direct_view()``, ``client.broadcast_view()``,
``client.load_balanced_view()``; ``client.engines`` has all that ``ipyparallel.Client`` has.
"""

from __future__ import annotations

try:
    import ipyparallel
except ImportError as error:
    raise ImportError(
        "views of engines are ipyparallel's, and ipyparallel is not installed: "
        "run `pip install '.[ipython]'` in a clone of Treadle, here and where the workers are"
    ) from error

from treadle.views._balanced import LoadBalancedView
from treadle.views._engines import Engines
from treadle.views._views import BroadcastView, DirectView

Reference = ipyparallel.Reference

__all__ = ["BroadcastView", "DirectView", "Engines", "LoadBalancedView", "Reference"]
