"""The log of a table in an object store: who was overtaken notices it, however the other one's checkpoint ended."""

from __future__ import annotations

import pytest

from ferryman import crash
from ferryman.storage import files
from ferryman.storage.delta import CommitUnknown, DataFile, DeltaLog, LogEntry, first_entry
from tests.support.in_store import faulty, states

__all__ = ["faulty", "states"]

COMMITS = 300


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed", [False, True])
def test_one_that_was_overtaken(states: str, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """Its number is free, since the log was trimmed. A checkpoint that was made without being noted harms nobody."""
    folder = files.path_of(states) / "a-table-with-an-ordinary-name-of-45-characters"

    def opened() -> DeltaLog[DataFile]:
        log = DeltaLog(folder, DataFile)
        log.refresh()
        return log

    def point(name: str) -> None:
        if killed and name == "checkpoint.made":
            raise Killed

    DeltaLog(folder, DataFile).create(first_entry('{"type":"struct","fields":[]}', [], {}))
    stale, driver = [opened()], opened()
    for number in range(COMMITS):
        assert driver.commit(LogEntry("wave", transactions={"n": number}))
        if number in (COMMITS // 3, COMMITS * 2 // 3):
            stale.append(opened())
            with monkeypatch.context() as patch:
                patch.setattr(crash, "point", point)
                if killed:
                    with pytest.raises(Killed):
                        driver.checkpoint()
                    driver = opened()
                else:
                    driver.checkpoint()
    driver.checkpoint()

    for log in stale:
        with pytest.raises(CommitUnknown):
            log.commit(LogEntry("wave", transactions={"n": -1}))
    again = opened()
    again.verify()
    assert (again.version, again.transactions) == (COMMITS, {"n": COMMITS - 1})
