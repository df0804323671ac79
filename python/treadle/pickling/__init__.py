"""Pickles of what a script defines, of what their own pickles leave out, and tokens of values."""
