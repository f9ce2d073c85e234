"""Workers on this machine load PySpark from the installed package."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman.engine.runner import daemon


def test_only_the_zips_of_pyspark_are_left_out() -> None:
    """What else there is to load modules from stays, in its order."""
    path = [
        "",
        "/v/pyspark/python/lib/pyspark.zip",
        "/v/pyspark/python/lib/py4j-0.10.9.9-src.zip",
        "/mine/steps.zip",
        "/v",
    ]

    assert daemon.without_zips(path) == ["", "/mine/steps.zip", "/v"]


class Where:
    """Task: where PySpark was loaded from."""

    def __call__(self, _: int) -> str:
        import pyspark

        return str(pyspark.__file__)


@pytest.mark.spark
def test_workers_load_the_installed_package(spark: Any) -> None:
    """A zip has no bytecode: each worker would compile what it loads."""
    import pyspark

    assert set(spark.submit(Where(), range(2)).result()) == {pyspark.__file__}
