"""Fixtures of an object store in place of a folder: a fake that fails as it is told, a client that may fork, a server
that is not ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ferryman.storage import delta, objects
from tests.servers.faulty_s3 import BUCKET, FaultyS3
from tests.support.http_store import HttpStore


def set_variables(monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyS3]:
    with FaultyS3() as started:
        yield started


@pytest.fixture
def states(
    faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[str]:
    """URL of a folder that is not there yet."""
    set_variables(monkeypatch, faulty.settings)
    monkeypatch.setenv(objects.CACHE_VARIABLE, str(tmp_path / "cache"))
    before = objects.set_store_opener(HttpStore)
    faulty.fail()
    yield f"s3://{BUCKET}/{request.node.originalname}/{os.urandom(4).hex()}"
    objects.set_store_opener(before)
    delta.forget_logs()


@pytest.fixture
def store(server: Callable[[str], Any]) -> str:
    """URL of a server that is not ours, with a bucket."""
    s3 = server("s3")
    if BUCKET not in [each["Name"] for each in s3.client().list_buckets()["Buckets"]]:
        s3.client().create_bucket(Bucket=BUCKET)
    return str(s3.url)
