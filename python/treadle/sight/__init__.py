"""What a cluster does, for those who watch it: a page in one file, a widget for notebooks, and tables for SQL."""

from __future__ import annotations

from treadle.sight._performance_report import performance_report
from treadle.sight._widget import widget

__all__ = ["performance_report", "widget"]
