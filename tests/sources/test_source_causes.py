"""What a source raises tells what led to it: by that the engine knows an outage from a bad file."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ferryman.errors import TransientError
from ferryman.net.faults import is_connection_error
from ferryman.sources import Csv, Files, JsonLines, Lines, Listed
from ferryman.sources.folder import Root

OUTAGES = {
    "device": OSError(errno.EIO, "Input/output error"),
    "stale": OSError(errno.ESTALE, "Stale file handle"),
    "connection": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
}


@pytest.fixture(params=OUTAGES.values(), ids=list(OUTAGES))
def outage(request: pytest.FixtureRequest) -> OSError:
    error = request.param
    assert isinstance(error, OSError)
    return error


@pytest.fixture
def bucket() -> Iterator[str]:
    """The URL of a folder in this process's memory, with the file ``a``."""
    root = f"/{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(f"{root}/a", b"one\n")
    yield f"memory:/{root}"
    fsspec.filesystem("memory").rm(root, recursive=True)


class Broken:
    """A file that opens and does not read."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def read(self, size: int = -1) -> bytes:
        raise self.error

    def close(self) -> None: ...


def fails(error: OSError) -> Callable[..., Any]:
    def call(*_args: Any, **_options: Any) -> Any:
        raise error

    return call


@pytest.mark.rule("outage.source")
def test_a_bucket_that_is_away(bucket: str, outage: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object at once."""
    source = Files(bucket)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fails(outage))
    with pytest.raises(TransientError, match="a: cannot be read now") as caught:
        source.read(Listed("a", 4))
    assert is_connection_error(caught.value, reading=True)


@pytest.mark.rule("outage.source")
@pytest.mark.parametrize("rows", [Csv, Lines, JsonLines])
@pytest.mark.parametrize("opens", [False, True], ids=["open", "read"])
def test_rows_in_a_bucket_that_is_away(
    bucket: str, outage: OSError, rows: Callable[[str], Lines], opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object piece by piece."""
    source = rows(bucket)
    (piece,) = source.partitions()
    memory = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(memory, "open", (lambda *_, **__: Broken(outage)) if opens else fails(outage))
    with pytest.raises(TransientError) as caught:
        list(source.listing(piece))
    assert is_connection_error(caught.value, reading=True)


@pytest.mark.rule("outage.source")
@pytest.mark.parametrize("rows", [Csv, Lines, JsonLines])
def test_rows_on_a_disk_that_is_away(
    tmp_path: Path, outage: OSError, rows: Callable[[Path], Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a folder."""
    (tmp_path / "a").write_bytes(b"one\n")
    source = rows(tmp_path)
    (piece,) = source.partitions()
    monkeypatch.setattr(Root, "_open", fails(outage))
    with pytest.raises(TransientError) as caught:
        list(source.listing(piece))
    assert is_connection_error(caught.value, reading=True)
