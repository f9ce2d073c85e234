"""Modules that tests need and collecting them does not: each process of pytest-xdist collects all, one runs them.

``pytest.importorskip`` loads its module, which takes seconds for clients such as LanceDB's.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Needed:
    """A module that is loaded when the first of its names is asked for. The file is skipped if it is not installed."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"could not import {name!r}", allow_module_level=True)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
