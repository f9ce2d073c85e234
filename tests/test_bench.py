"""The benchmarks can be started: none of them imports what is not there any more."""

from __future__ import annotations

import importlib

import pytest
from bench.__main__ import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name}").measure)
