"""The stand-alone shuffle service for programs: rows on servers of its own, in two copies.

``treadle.shuffle`` has the names for users.
"""
