"""Rows of a shuffle: data frames and pieces of arrays as batches, and back.

``Agreed`` says what all maps of a shuffle know beforehand. ``split`` takes the rows of a map, which are
gathered for groups of partitions; ``assemble`` makes a partition of the pieces of all maps.
``split_array`` and ``assemble_array`` do the same with the pieces of an array.
"""

from __future__ import annotations

from treadle.shuffle._agreed import Agreed
from treadle.shuffle._arrays import assemble_array, split_array
from treadle.shuffle._assemble import Piece, assemble
from treadle.shuffle._split import split

__all__ = ["Agreed", "Piece", "assemble", "assemble_array", "split", "split_array"]
