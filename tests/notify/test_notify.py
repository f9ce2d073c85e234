"""Somebody is told what went wrong: once, signed, and nothing that goes wrong over it harms the run."""

from __future__ import annotations

import base64
import hmac
import json
import shlex
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError, PlanError
from ferryman.plan import NotifyTarget, Plan, structure
from ferryman.state.state import NOTIFIED
from tests.support.mailbox import Mailbox
from tests.support.plan_world import PlanWorld
from tests.support.receiver import Receiver, Reply, closed_port


def step(doc: Document) -> Document:
    if doc.text().startswith("bad"):
        raise PermanentError("no good")
    return doc


def refuse(delivery: Delivery) -> Outcome:
    return Outcome.permanent("not here") if delivery.text().startswith("refuse") else Outcome.ok()


def away() -> None:
    raise ConnectionError("nobody is at home")


@pytest.mark.rule("notify.new")
def test_what_is_new_is_told_once(trial: PlanWorld) -> None:
    """A digest names what is newly failed or rejected; a run in which nothing changes tells nothing."""
    trial.build(step, answer=refuse)
    trial.put("a", "b", text="bad")
    trial.put("c", text="refuse")
    trial.put("d")
    with Receiver() as receiver:
        trial.plan.notify(receiver.url)
        trial.run()
        trial.run()
        assert len(receiver.requests) == 1
        told = receiver.requests[0].json
        assert told["plan"] == "trial"
        assert told["version"] == 1
        assert told["state"] == str(trial.root)
        assert told["new"] == {"failed": 1, "rejected": 2, "in_doubt": 0}
        assert {(e["document"], e["destination"], e["status"]) for e in told["examples"]} == {
            ("a", "out", "rejected"),
            ("b", "out", "rejected"),
            ("c", "out", "failed"),
        }
        assert all("no good" in e["reason"] or "not here" in e["reason"] for e in told["examples"])

        trial.put("b", text="bad still")
        trial.run()
        assert receiver.requests[1].json["new"] == {"failed": 0, "rejected": 1, "in_doubt": 0}
        assert [e["document"] for e in receiver.requests[1].json["examples"]] == ["b"]


def test_all_well_is_not_told(trial: PlanWorld) -> None:
    """Nobody is bothered over a run that went well."""
    trial.put("a")
    with Receiver() as receiver:
        trial.run(notify=[NotifyTarget(receiver.url)])
        assert receiver.requests == []


def test_what_is_mended_in_the_same_run_is_not_told(trial: PlanWorld) -> None:
    """Of an older revision that failed nothing is told once a newer one is there."""
    trial.build(step)
    trial.put("a", text="bad")
    trial.run()
    trial.put("a", text="good")
    trial.run()
    with Receiver() as receiver:
        trial.run(notify=[NotifyTarget(receiver.url)])
        assert receiver.requests == []


@pytest.mark.rule("notify.undelivered")
def test_what_did_not_get_across_is_in_the_next_digest(trial: PlanWorld) -> None:
    """A receiver that fails costs a message; it gets all of it later, another target only what is new."""
    trial.build(step)
    trial.put("a", text="bad")
    with Receiver(lambda _: Reply(500)) as broken, Receiver() as well:
        trial.plan.notify(broken.url)
        trial.plan.notify(well.url)
        summary = trial.run()
        assert summary.exit == 3
        assert any("notify" in m and "500" in m for m in summary.messages)
        broken.answer = lambda _: Reply()
        trial.put("b", text="bad")
        trial.run()
        assert broken.requests[-1].json["new"]["rejected"] == 2
        assert [r.json["new"]["rejected"] for r in well.requests] == [1, 1]


@pytest.mark.rule("notify.harmless")
@pytest.mark.parametrize("to", ["http://127.0.0.1:{port}/x", "mailto:a@b?server=127.0.0.1:{port}", "no-such-command"])
def test_a_notifier_that_fails_never_stops_a_run(trial: PlanWorld, to: str) -> None:
    """Whatever is wrong with it: a message, and the exit code is as without it."""
    trial.build(step)
    trial.put("a", text="bad")
    trial.put("b")
    with closed_port() as port:
        summary = trial.run(notify=[NotifyTarget(to.format(port=port))])
    assert summary.exit == 3
    assert trial.counts()["rejected" if "rejected" in trial.counts() else "error_doc"] == 1
    assert [m for m in summary.messages if m.startswith("notify ")]


@pytest.mark.parametrize("kind", ["url", "mail", "command"])
def test_a_notifier_that_hangs_is_left_alone(trial: PlanWorld, kind: str) -> None:
    """After its time the run goes on."""
    trial.build(step)
    trial.put("a", text="bad")
    with Receiver(lambda _: Reply(how="late")) as receiver, Mailbox(silent=True) as mailbox:
        to = {"url": receiver.url, "mail": f"mailto:a@b?server=127.0.0.1:{mailbox.port}", "command": "sleep 100"}
        summary = trial.run(notify=[NotifyTarget(to[kind], timeout_s=0.2)])
    assert summary.exit == 3
    assert [m for m in summary.messages if m.startswith("notify ")]


def test_a_target_that_says_nothing_is_let_go(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose own time-out does not work either is left to itself."""
    import threading

    from ferryman import notify

    never = threading.Event()
    monkeypatch.setattr(notify, "send", lambda *_: never.wait(60))
    monkeypatch.setattr(limits, "NOTIFY_GRACE_S", 0.05)
    trial.build(step)
    trial.put("a", text="bad")
    summary = trial.run(notify=[NotifyTarget("true", timeout_s=0.05)])
    never.set()
    assert [m for m in summary.messages if m.startswith("notify true: no end after")]


@pytest.mark.rule("notify.signed")
def test_posts_are_signed_as_webhooks_are(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is over id, time and body; the secret is the plan's, or the environment's."""
    monkeypatch.setenv("HOOK", "key one")
    monkeypatch.setenv("FERRYMAN_NOTIFY_SECRET", "key two")
    trial.build(step)
    trial.put("a", text="bad")
    with Receiver() as receiver:
        trial.plan.notify(receiver.url + "?1", secret="${HOOK}")
        trial.run(notify=[NotifyTarget(receiver.url + "?2")])
        for request in receiver.requests:
            key = b"key one" if request.path.endswith("1") else b"key two"
            signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
            expected = base64.b64encode(hmac.digest(key, signed, sha256)).decode()
            assert request.headers["webhook-signature"] == f"v1,{expected}"
        assert len(receiver.requests) == 2


@pytest.mark.rule("notify.stopped")
def test_a_node_that_is_away_is_told_once(trial: PlanWorld) -> None:
    """Once for each outage, however many runs it lasts; and again when it is away again."""
    trial.build()
    trial.put("a")
    with Receiver() as receiver:
        trial.plan.notify(receiver.url)
        trial.out().refuse = away
        assert trial.run(wait=0).exit == 4
        assert trial.run(wait=0).exit == 4
        assert len(receiver.requests) == 1
        told = receiver.requests[0].json
        assert told["new"] == {"failed": 0, "rejected": 0, "in_doubt": 0}
        [stopped] = told["stopped"]
        assert (stopped["node"], stopped["kind"], stopped["permanent"]) == ("out", "destination", False)
        assert "nobody is at home" in stopped["why"]
        trial.build()  # on which the plan is another object
        trial.out().refuse = None
        trial.plan.notify(receiver.url)
        assert trial.run().exit == 0
        trial.put("b")
        trial.out().refuse = away
        trial.run(wait=0)
        assert len(receiver.requests) == 2


def test_a_mail_is_plain_text(trial: PlanWorld) -> None:
    """To all addresses, from whom it says, with counts, examples and reasons."""
    trial.build(step)
    trial.put("a", text="bad")
    with Mailbox() as mailbox:
        trial.run(notify=[NotifyTarget(f"mailto:x@example.org,y@example.org?server=127.0.0.1:{mailbox.port}&from=f@z")])
        [mail] = mailbox.mails
    assert mail["To"] == "x@example.org,y@example.org"
    assert mail["From"] == "f@z"
    assert mail["Subject"] == "Ferryman: trial v1: 1 rejected"
    text = mail.get_payload()
    assert isinstance(text, str)
    assert "a for out, rejected: step step: PermanentError: no good" in text
    assert str(trial.root) in text


def test_a_command_gets_the_digest_on_its_standard_input(trial: PlanWorld, place: Path) -> None:
    """No shell is asked, and the words of the command stay as they are quoted."""
    out = place / "told here.json"
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read())"
    command = shlex.join([sys.executable, "-c", code, str(out)])
    trial.build(step)
    trial.put("a", text="bad")
    trial.run(notify=[NotifyTarget(command)])
    assert json.loads(out.read_text())["new"]["rejected"] == 1


def test_once_a_period(trial: PlanWorld) -> None:
    """With ``every`` each period has a digest of its own."""
    trial.build(step)
    periods = 0

    def sleep(_: float) -> None:
        nonlocal periods
        periods += 1
        if periods == 3:
            raise KeyboardInterrupt
        trial.put(f"bad {periods}", text="bad")

    trial.put("bad 0", text="bad")
    with Receiver() as receiver:
        with pytest.raises(KeyboardInterrupt):
            trial.run(every=1, sleep=sleep, wait=0, checked=False, notify=[NotifyTarget(receiver.url)])
        assert [[e["document"] for e in r.json["examples"]] for r in receiver.requests] == [
            ["bad 0"],
            ["bad 1"],
            ["bad 2"],
        ]


def test_many_are_counted_in_shares(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fail at once: the counts are right, the examples few, and nothing is held."""
    monkeypatch.setattr(limits, "QUERY_ROWS", 7)
    trial.build(step)
    for i in range(100):
        trial.put(f"an id of some length, {i:020}", text="bad")
    with Receiver() as receiver:
        trial.run(notify=[NotifyTarget(receiver.url)])
        [request] = receiver.requests
    assert request.json["new"]["rejected"] == 100
    assert [e["document"] for e in request.json["examples"]] == [f"an id of some length, {i:020}" for i in range(10)]


def test_credentials_are_in_no_message(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a URL, nor of a mail server, nor of a command."""
    monkeypatch.setenv("MAILPASS", "s3cret-env")
    trial.build(step)
    trial.put("a", text="bad")
    with closed_port() as port, Mailbox() as mailbox:
        targets = [
            NotifyTarget(f"http://user:s3cret@127.0.0.1:{port}/x?token=s3cret"),
            NotifyTarget(f"mailto:a@b?server=127.0.0.1:{port}&user=u&password=s3cret"),
            NotifyTarget(f"mailto:a@b?server=127.0.0.1:{mailbox.port}&user=u&password=${{MAILPASS}}"),
            NotifyTarget("false --token s3cret"),
            NotifyTarget("mailto:a@b?server=x:1&password=${UNSET_S3CRET}"),
        ]
        summary = trial.run(notify=targets)
    told = [m for m in summary.messages if m.startswith("notify ")]
    assert len(told) == 5
    assert not [m for m in told if "s3cret" in m]
    assert [m for m in told if "STARTTLS" in m]
    assert b"s3cret" not in (trial.root / NOTIFIED).read_bytes() if (trial.root / NOTIFIED).exists() else True


@pytest.mark.parametrize(
    ("to", "options", "why"),
    [
        ("", {}, "give a URL"),
        ("ftp://host/x", {}, "ftp is not known here"),
        ("mailto:nobody", {}, "give an address"),
        ("echo 'a", {}, "quote is not closed"),
        ("echo", {"secret": "x"}, "a secret signs"),
        ("http://host/\nx", {}, "on one line"),
        ("http://host", {"timeout_s": 0}, "give seconds above 0"),
        ("http://host", {"timeout_s": float("nan")}, "give seconds above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(to: str, options: dict[str, Any], why: str) -> None:
    """When the plan is checked, with what to do."""
    plan = PlanWorld(Path("nowhere")).build().plan
    plan.notify(to, **options)
    with pytest.raises(PlanError, match=why):
        plan.check()


def test_it_is_no_part_of_the_structure(trial: PlanWorld) -> None:
    """A plan that tells somebody else is the plan that it was."""
    plan = trial.build().plan
    before, print_before = structure(plan), plan.fingerprint
    plan.notify("http://host/x")
    assert structure(plan) == before
    assert plan.fingerprint == print_before


def test_a_frozen_plan_takes_no_more(trial: PlanWorld) -> None:
    """As for its nodes."""
    plan: Plan = trial.build().plan
    plan.freeze()
    with pytest.raises(PlanError, match="frozen"):
        plan.notify("http://host/x")


def test_a_damaged_note_only_tells_again(trial: PlanWorld) -> None:
    """What the state remembers of digests is no part of the account: damage costs a digest, not a run."""
    trial.build(step)
    trial.put("a", text="bad")
    with Receiver() as receiver:
        targets = [NotifyTarget(receiver.url)]
        trial.run(notify=targets)
        (trial.root / NOTIFIED).write_bytes(b"00000000 {}")
        summary = trial.run(notify=targets)
        assert summary.exit == 3
        assert len(receiver.requests) == 2
        assert [m for m in summary.messages if NOTIFIED in m]
