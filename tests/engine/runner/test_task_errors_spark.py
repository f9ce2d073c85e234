"""What a task raises reaches the driver through Spark."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman.errors import EngineError, StateDamaged


class Refused(Exception):
    """Is called neither Error nor Exception."""


def damaged(_: int) -> None:
    raise StateDamaged("/state/x", "it is cut short")


def refused(_: int) -> None:
    raise Refused("not today")


@pytest.mark.spark
def test_errors_of_tasks(spark: Any) -> None:
    """One of ours as it is; of others kind and words."""
    with pytest.raises(StateDamaged) as raised:
        spark.submit(damaged, [1]).result()
    assert (raised.value.path, raised.value.what) == ("/state/x", "it is cut short")
    with pytest.raises(EngineError, match=r"^Spark: .*Refused: not today$"):
        spark.submit(refused, [1]).result()
