"""Treadle inside a cluster that somebody has already.

:func:`attach` starts Treadle's scheduler and workers in the processes of a Dask cluster.
"""

from treadle.hosting._attach import attach
from treadle.hosting._collections import adopt, give_back
from treadle.hosting._host import Host, Place

__all__ = ["Host", "Place", "adopt", "attach", "give_back"]
