"""What a run reports of destinations, failures and mirrors, a service reports too."""

from __future__ import annotations

import json
import shutil
import threading

import pytest

from ferryman.destinations import Cassandra
from ferryman.intake.service.processing import ProcessingConsumer
from tests.intake.service.place import Place
from tests.support.receiver import closed_port


def test_failures_are_reported_while_there_is_work(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is never idle does not keep them to itself."""
    told, left, turn = intake.folder / "told.json", iter(range(1000)), ProcessingConsumer.turn
    intake.plan.notify(f"tee {told}")
    intake.submit(manifest_url=intake.manifest([intake.row("a.txt", "bad \0 byte", local_id="a")]))

    def busy_turn(self: ProcessingConsumer) -> bool:
        return turn(self) or (not told.exists() and next(left, None) is not None)

    monkeypatch.setattr(ProcessingConsumer, "turn", busy_turn)
    intake.serve()
    assert json.loads(told.read_text())["new"]["rejected"] == 1
    assert next(left, None) is not None


def test_an_older_copy_of_an_index_is_noticed(intake: Place) -> None:
    """The next time that it is served."""
    index, copy = intake.folder / "index.db", intake.folder / "copy.db"
    for name in ("a", "b"):
        intake.submit(manifest_url=intake.manifest([intake.row(f"{name}.txt", local_id=name)]))
        intake.serve()
        if name == "a":
            shutil.copy(index, copy)
    assert not [line for line in intake.said.lines if "verify" in line]
    shutil.copy(copy, index)
    intake.submit(manifest_url=intake.manifest([intake.row("c.txt", local_id="c")]))
    intake.serve()
    assert [line for line in intake.said.lines if "destination index: " in line and "verify PLAN --repair" in line]


def test_a_mirror_that_is_away_is_reported(intake: Place) -> None:
    """And no thread of it goes on when the service has ended."""
    pytest.importorskip("cassandra")
    intake.submit(manifest_url=intake.manifest([intake.row("a.txt", local_id="a")]))
    with closed_port() as port:
        intake.plan.mirror(Cassandra(f"127.0.0.1:{port}"))
        intake.serve()
    [line] = [line for line in intake.said.lines if "mirror cassandra" in line]
    assert "sends what it lacks" in line
    assert "ferryman-mirror" not in [thread.name for thread in threading.enumerate()]
