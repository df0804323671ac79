"""Pickling beyond ``pickle`` and ``cloudpickle``.

Definitions of scripts by value (``_by_value``, ``_mp_main``, ``_script``), objects whose own ``__reduce__`` loses
data (``_lossless``), the functions and namespaces of views (``_canning``), Dask's tokens (``_tokens``).
"""
