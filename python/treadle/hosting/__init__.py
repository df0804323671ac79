"""Treadle inside a cluster that somebody has already.

:func:`attach` starts Treadle's scheduler and workers in the processes of a Dask cluster,
:func:`attach_ray` in those of a Ray cluster. :func:`accelerate` leaves all tasks to Dask, and moves
the rows of its shuffles.
"""

# First: it says what to install where distributed is missing.
import treadle.client  # noqa: F401

# isort: split
from treadle.hosting._accelerate import accelerate, decelerate
from treadle.hosting._attach import attach, detach
from treadle.hosting._collections import adopt, give_back
from treadle.hosting._host_base import Host, Place
from treadle.hosting._ray import attach_ray, from_ray, to_ray

__all__ = [
    "Host",
    "Place",
    "accelerate",
    "adopt",
    "attach",
    "attach_ray",
    "decelerate",
    "detach",
    "from_ray",
    "give_back",
    "to_ray",
]
