"""The suite finds destinations that break promises of the port."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Outcome
from ferryman.testing.destinations import DestinationSuite


class Buffered(Destination):
    """Sends the rows of a chunk together; one that is ``dirty`` sends what a failed write has left with the next one,
    one that is ``stuck`` cannot be opened then."""

    effect = Effect.IDEMPOTENT
    transactional = True

    def __init__(self, path: Path, *, dirty: bool, stuck: bool) -> None:
        self._path = path
        self._dirty, self._stuck = dirty, stuck
        self._rows: list[str] = []

    def open(self, context: DestinationContext) -> None:
        if self._rows and self._stuck:
            raise ConnectionError("it is open")
        if not self._dirty:
            self._rows = []

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        known = set(self._path.read_text().split()) if self._path.exists() else set()
        for each in chunk:
            if each.hash not in known and each.fields is not None:
                self._rows.append(each.hash)
        self._send()
        return [Outcome.ok()] * len(chunk)

    def _send(self) -> None:
        with self._path.open("a") as file:
            file.writelines(f"{each}\n" for each in self._rows)
        self._rows = []


class OfBuffered(DestinationSuite):
    def __init__(self, *, dirty: bool, stuck: bool) -> None:
        self.options = {"dirty": dirty, "stuck": stuck}

    def destination(self, folder: Path) -> Destination:
        return Buffered(folder / "out", **self.options)

    def hashes(self, folder: Path) -> list[str]:
        return (folder / "out").read_text().split()


def test_a_destination_that_is_not_ready_after_a_failed_write_is_found(tmp_path: Path) -> None:
    for name, options, error in (
        ("good", {}, None),
        ("dirty", {"dirty": True}, AssertionError),
        ("stuck", {"stuck": True}, ConnectionError),
    ):
        suite = OfBuffered(**{"dirty": False, "stuck": False, **options})
        (tmp_path / name).mkdir()
        if error is None:
            suite.test_it_is_ready_again_after_a_write_that_failed(tmp_path / name)
            continue
        with pytest.raises(error):
            suite.test_it_is_ready_again_after_a_write_that_failed(tmp_path / name)
