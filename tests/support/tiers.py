"""Which cases of a test are run each time, and which by `make prove` alone. See tests/README.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """The first case and every so many after it are run each time; the others are marked ``slow``."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=[] if n % every == 0 else [pytest.mark.slow]
        )
        for n, case in enumerate(cases)
    ]
