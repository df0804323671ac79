"""The pages."""

from __future__ import annotations

from fastapi import FastAPI

__all__ = ["add_pages"]


def add_pages(app: FastAPI) -> None:
    """Add the pages to an application."""
