"""Graphs in this process: what a ``get`` is given, its order, its steps."""
