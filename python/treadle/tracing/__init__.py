"""Recordings of a cluster: which task ran where and when, and which object went where."""
