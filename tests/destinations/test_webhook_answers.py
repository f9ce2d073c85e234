"""What ``Webhook`` makes of answers, and of connections that fail."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ferryman.destinations import DestinationContext, Guarantee, Outcome, Webhook
from ferryman.destinations.webhook import STATUSES, meaning
from ferryman.errors import PermanentError, TransientError
from ferryman.net.urls import retry_after_s
from ferryman.testing.destinations import delivery
from ferryman.testing.proxy import Proxy, ProxyFault
from tests.destinations.conftest import TlsServer
from tests.destinations.webhook import AGAIN, ONCE, THREE, kinds, opened, receiver
from tests.support.receiver import Receiver, Reply, Request, closed_port

__all__ = ["receiver"]

pytestmark = pytest.mark.every_case


# --- what the answers mean --------------------------------------------------------------------------------------------


def test_outcomes_are_told_one_by_one(receiver: Receiver) -> None:
    """By hash, in any order; one that is left out is unknown, never ok."""
    said = [
        {"hash": THREE[2].hash, "outcome": "permanent", "why": "no such shelf"},
        {"hash": THREE[0].hash, "outcome": "stale"},
        {"hash": "0" * 32, "outcome": "ok"},
    ]
    receiver.answer = lambda _: Reply(200, json.dumps({"outcomes": said, "more": 1}).encode())
    outcomes = opened(receiver).write(THREE)
    assert kinds(outcomes) == [("stale", False), ("unknown", False), ("permanent", False)]
    assert outcomes[2].why == "no such shelf"


def test_outcomes_as_libraries_write_them(receiver: Receiver) -> None:
    """Python's and JavaScript's write half a character of a text that was cut, Python's NaN, .NET's a byte order
    mark. What was refused is not taken for delivered."""
    said = [{"hash": d.hash, "outcome": "permanent", "why": "no \ud83d", "score": float("nan")} for d in THREE]
    receiver.answer = lambda _: Reply(200, json.dumps({"outcomes": said}).encode("utf-8-sig"))
    outcomes = opened(receiver).write(THREE)
    assert [(o.kind, o.why) for o in outcomes] == [("permanent", "no ?")] * 3


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "ok"),
        (b"thank you", "ok"),
        (b"[1]", "ok"),
        (b'{"ok": true}', "ok"),
        (b"\xff", "ok"),
        (b'{"outcomes": []}', "unknown"),
        (b'{"outcomes": "ok"}', "unknown"),
        (b'{"outcomes": [{"hash": "x", "outcome": "perhaps"}]}', "unknown"),
        (b'{"outcomes": [{"hash": "x", "outc', "unknown"),
        (b'{"outcomes": [{"hash": "x", "outcome": "ok", "why": "caf\xe9"}]}', "unknown"),
        (b'{"n": NaN}', "ok"),
    ],
)
def test_a_success_speaks_of_outcomes_or_it_does_not(receiver: Receiver, body: bytes, expected: str) -> None:
    """What speaks of them and cannot be understood leaves all of them unknown."""
    receiver.answer = lambda _: Reply(202, body)
    assert [o.kind for o in opened(receiver).write(THREE)] == [expected] * 3


@pytest.mark.parametrize(
    "status", sorted({*STATUSES, 301, 307, 400, 422, 451, 502, 504, 507, 520, 999} - {408, 425, 429, 503})
)
@pytest.mark.parametrize("guarantee", [ONCE, AGAIN])
def test_what_a_status_means(receiver: Receiver, status: int, guarantee: Guarantee) -> None:
    """Of the receiver or of the documents; refused, or not sure. What is not sure is raised, and so is unknown."""
    receiver.answer = lambda _: Reply(status, b'{"error": "so\\nit is"}', {"location": f"{receiver.url}/elsewhere"})
    hook = opened(receiver, guarantee)
    meant = meaning(status)
    if meant.kind == "unsure":
        with pytest.raises(Exception, match=f"{receiver.url}: answered {status}") as caught:
            hook.write(THREE)
        assert isinstance(caught.value, ConnectionError) is meant.universal
        assert not isinstance(caught.value, TransientError), "it would say that nothing took effect"
    elif guarantee is AGAIN and not meant.universal:
        with pytest.raises(PermanentError, match=f"answered {status}") as refused:
            hook.write(THREE)
        assert not refused.value.universal, "the chunk is to be halved"
        assert kinds(hook.write(THREE[:1])) == [("permanent", False)]
    else:
        outcomes = hook.write(THREE)
        assert kinds(outcomes) == [("permanent", meant.universal)] * 3
        assert f"answered {status}" in outcomes[0].why
        assert meant.remedy in outcomes[0].why
    assert {request.path for request in receiver.requests} == {"/hook"}, "a redirect was followed"


@pytest.mark.parametrize("status", [408, 425, 429, 503])
@pytest.mark.parametrize("guarantee", [ONCE, AGAIN])
def test_not_now(receiver: Receiver, status: int, guarantee: Guarantee) -> None:
    """The receiver's own word that it took nothing: it is sent again under any guarantee."""
    receiver.answer = lambda _: Reply(status, headers={"Retry-After": "3600"})
    outcomes = opened(receiver, guarantee).write(THREE)
    assert kinds(outcomes) == [("transient", True)] * 3
    assert "asks to wait 3600 s" in outcomes[0].why
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("after", ["0", "1", "Mon, 01 Jan 2001 00:00:00 GMT"])
def test_a_short_wait_is_waited(receiver: Receiver, after: str) -> None:
    """Then it is sent again, with the same key."""
    times: list[float] = []

    def answer(_: Request) -> Reply:
        times.append(time.monotonic())
        return Reply(429, headers={"Retry-After": after}) if len(times) == 1 else Reply()

    receiver.answer = answer
    assert opened(receiver).write(THREE) == [Outcome.ok()] * 3
    assert times[1] - times[0] >= (1 if after == "1" else 0)
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


def test_what_retry_after_says() -> None:
    """Seconds, or a date; what is neither says nothing."""
    said = {"120": 120.0, " 7 ": 7.0, "": None, "soon": None, "-1": None, "9" * 30: 999999999.0}
    assert {text: retry_after_s({"retry-after": text}) for text in said} == said
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=40) == 60
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=140) == 0


# --- what fails on the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", [ONCE, AGAIN])
def test_refused_before_anything_was_sent(guarantee: Guarantee) -> None:
    """Nothing took effect, for certain: all of them are owed as before, under any guarantee."""
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/hook"
        outcomes = opened(url, guarantee).write(THREE)
        assert kinds(outcomes) == [("transient", True)] * 3
        assert outcomes[0].why == f"{url}: Connection refused"
        with pytest.raises(TransientError, match="Connection refused") as caught:
            Webhook(url).check()
        assert caught.value.universal


@pytest.mark.parametrize("how", ["nothing", "reset", "half", "nonsense", "late"])
def test_broken_off_after_it_was_sent(receiver: Receiver, how: str) -> None:
    """It may have taken effect: that is raised, which leaves it unknown under at-most-once."""
    receiver.answer = lambda _: Reply(200, b"{}", how=how)
    hook = opened(receiver, timeout_s=0.3 if how == "late" else 20)
    with pytest.raises(ConnectionError, match=f"{receiver.url}: it was sent, but"):
        hook.write(THREE)
    assert len(receiver.requests) == 1, "it was sent again"
    receiver.answer = lambda _: Reply()
    assert hook.write(THREE) == [Outcome.ok()] * 3, "it does not recover"


@pytest.mark.parametrize("fault", [f for f in ProxyFault if f is not ProxyFault.DELAY_ANSWER])
def test_broken_off_on_the_way(receiver: Receiver, fault: ProxyFault) -> None:
    """Wherever it broke, after the first byte nobody knows; on a connection that was used before too."""
    with Proxy("127.0.0.1", receiver.port) as proxy:
        hook = opened(f"http://127.0.0.1:{proxy.port}/hook")
        for sequence in (1, 2):
            assert hook.write([delivery("a", sequence)]) == [Outcome.ok()]
            proxy.break_next(fault)
            with pytest.raises(ConnectionError, match="it was sent, but"):
                hook.write([delivery("b", sequence)])
            assert proxy.broken == sequence


def test_a_certificate_that_is_not_trusted(tls_server: TlsServer, tmp_path: Path) -> None:
    """Nothing is sent; a person must say whom to trust."""
    with Receiver(tls=tls_server.context) as receiver:
        hook = Webhook(receiver.url)
        with pytest.raises(PermanentError, match=r"its certificate is refused: .*Give its authority: ca=") as caught:
            hook.check()
        assert caught.value.universal
        assert kinds(opened(receiver).write(THREE)) == [("permanent", True)] * 3
        assert receiver.requests == []
        trusting = opened(receiver, ca=str(tls_server.ca))
        trusting.check()
        trusting.open(DestinationContext("plays", 2, "notify", 1, ONCE))
        assert trusting.write(THREE) == [Outcome.ok()] * 3
    with pytest.raises(PermanentError, match="cannot be read as PEM") as unreadable:
        Webhook(receiver.url, ca=str(tmp_path / "none.pem")).check()
    assert unreadable.value.universal


def test_no_tls_where_it_is_expected(receiver: Receiver) -> None:
    """An https URL of a server that speaks http: nothing was sent that it could have understood."""
    url = receiver.url.replace("http:", "https:")
    assert kinds(opened(url).write(THREE)) == [("transient", True)] * 3
    assert receiver.requests == []
