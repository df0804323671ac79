"""Pickling beyond ``pickle`` and ``cloudpickle``.

Definitions of scripts by value (``_by_value``, ``_spawned``, ``_script``), objects whose own ``__reduce__`` loses
data (``_whole``), the functions and namespaces of views (``_canning``), Dask's tokens (``_tokens``).
"""
