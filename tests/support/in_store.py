"""Fixtures of an object store in place of a folder: a fake that fails as it is told, and a client that may fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.storage import delta, objects
from ferryman.storage import objects as cache
from tests.servers.faulty_s3 import BUCKET, FaultyS3
from tests.support.http_store import HttpStore


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyS3]:
    with FaultyS3() as started:
        yield started


@pytest.fixture
def states(
    faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[str]:
    """URL of a folder that is not there yet."""
    for name, value in faulty.settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    before = objects.set_store_opener(HttpStore)
    faulty.fail()
    yield f"s3://{BUCKET}/{request.node.originalname}/{os.urandom(4).hex()}"
    objects.set_store_opener(before)
    delta.forget_logs()
