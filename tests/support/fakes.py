"""The type of the fixture `fake`, which puts fakes in place of modules, and rows as the account gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fake = Callable[..., None]


def row(document: str, status: str, message: str = "", **more: Any) -> dict[str, Any]:
    """An event of an upsert, as the account gives it."""
    return {
        "source": "files",
        "document": document,
        "version": "00ff",
        "revision": 1,
        "operation": "upsert",
        "route": "",
        "destination": "index",
        "status": status,
        "message": message,
        "attempt": 1,
        "wave": 1,
        "created": "2025-01-31T12:00:00.123456+00:00",
        **more,
    }
