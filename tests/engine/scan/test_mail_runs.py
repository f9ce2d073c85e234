"""Runs over mailboxes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.errors import TransientError
from ferryman.sources import Imap, Mailbox
from tests.servers.dovecot import PASSWORD
from tests.servers.registry import require_package
from tests.support.mails import mail, mbox
from tests.support.plan_world import Interrupted, PlanWorld, Until


def arrived(trial: PlanWorld) -> dict[str, int]:
    """Number of a mail -> deliveries; a deletion has a minus before it."""
    return {id.partition("@")[0]: count for id, count in trial.arrived().items()}


def fill(folder: Path, **files: list[int]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, numbers in files.items():
        (folder / f"{name}.mbox").write_bytes(mbox(*map(mail, numbers)))
        os.utime(folder / f"{name}.mbox", (1, 1))  # it is not being written any more
    return folder


def test_runs_follow_a_mailbox(trial: PlanWorld, place: Path) -> None:
    box = fill(place / "box", a=[1, 2], b=[3, 4])
    trial.build(source=Mailbox(box, max_deleted=1))
    assert trial.run().exit == 0
    assert trial.run().exit == 0
    assert arrived(trial) == dict.fromkeys("1234", 1)
    fill(box, a=[1], b=[3, 4, 2, 5])  # one moved, one is new
    assert trial.run().exit == 0
    assert arrived(trial) == {"1": 1, "2": 2, "3": 1, "4": 1, "5": 1}
    fill(box, a=[1], b=[4, 2, 5])
    assert trial.run().exit == 0
    assert arrived(trial) == {"1": 1, "2": 2, "3": 1, "4": 1, "5": 1, "-3": 1}


def test_an_incomplete_listing_deletes_nothing(trial: PlanWorld, place: Path) -> None:
    box = fill(place / "box", a=[1, 2], b=[3, 4])
    trial.build(source=Mailbox(box, max_deleted=1))
    assert trial.run().exit == 0
    (box / "a.mbox").write_bytes(b"damaged")
    fill(box, b=[4, 5])
    run = trial.run(wait=0)
    assert run.exit == 4
    assert any("is not a mailbox any more" in message for message in run.messages)
    assert arrived(trial) == dict.fromkeys("12345", 1)
    (box / "a.mbox").unlink()
    assert trial.run().exit == 0
    assert {key for key in arrived(trial) if key.startswith("-")} == {"-1", "-2", "-3"}


def test_many_missing_at_once_wait(trial: PlanWorld, place: Path) -> None:
    box = fill(place / "box", a=list(range(20)), b=[20])
    trial.build(source=Mailbox(box, max_deleted=0.1))
    assert trial.run().exit == 0
    fill(box, a=list(range(17)))
    assert trial.run(wait=0).exit == 2
    assert not any(key.startswith("-") for key in arrived(trial))
    fill(box, a=list(range(19)))
    assert trial.run(wait=0).exit == 0
    assert {key for key in arrived(trial) if key.startswith("-")} == {"-19"}


def test_what_waits_is_tried_again(trial: PlanWorld, place: Path) -> None:
    def fails_at_first(doc: Any) -> Any:
        if doc.id.startswith("2@") and not (place / "well").exists():
            raise TransientError("not now")
        return doc

    trial.build(fails_at_first, source=Mailbox(fill(place / "box", a=[1, 2, 3])))
    assert trial.run(wait=0).exit == 4
    (place / "well").touch()
    trial.retry()
    assert trial.run(wait=0).exit == 0
    assert arrived(trial) == dict.fromkeys("123", 1)


@pytest.mark.parametrize(("wave", "phase"), [(1, "transform"), (1, "commit"), (2, "deliver"), (3, "commit")])
def test_a_killed_run_goes_on(trial: PlanWorld, place: Path, wave: int, phase: str) -> None:
    box = fill(place / "box", a=[1, 2], b=[2, 3, 4])
    trial.build(source=Mailbox(box, max_deleted=1))
    with pytest.raises(Interrupted):
        trial.run(observer=Until(wave, phase), wave_bytes=len(mail(1)) + 100)
    assert trial.run().exit == 0
    assert arrived(trial) == dict.fromkeys("1234", 1)


@pytest.mark.server
def test_a_server_that_is_away_and_back(
    server: Callable[[str], Any], trial: PlanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    imapclient = require_package("imapclient")
    dovecot = server("dovecot")
    monkeypatch.setenv("IMAP_PASSWORD", PASSWORD)

    def put(*numbers: int) -> None:
        with imapclient.IMAPClient("127.0.0.1", dovecot.port, ssl=False) as client:
            client.login("runs", PASSWORD)
            for each in numbers:
                client.append("INBOX", mail(each))

    put(1, 2)
    trial.build(source=Imap("127.0.0.1", user="runs", security="none", port=dovecot.port))
    assert trial.run().exit == 0
    dovecot.kill()
    run = trial.run(wait=0)
    dovecot.start()
    assert run.exit == 4
    assert any("does not answer" in message for message in run.messages)
    put(3)
    assert trial.run().exit == 0
    assert arrived(trial) == dict.fromkeys("123", 1)
