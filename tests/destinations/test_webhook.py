"""The ``Webhook`` destination, against a server of the test's own."""

from __future__ import annotations

import base64
import hmac
import json
import pickle
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, Destination, DestinationContext, Guarantee, Outcome, Webhook
from ferryman.destinations.webhook.answers import STATUSES, meaning, retry_after_s
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.proxy import Proxy, ProxyFault
from ferryman.testing.servers import ServerSuite
from tests.destinations.conftest import TlsServer
from tests.support.receiver import Receiver, Reply, Request, closed_port
from tests.support.trial import Trial

ONCE, AGAIN = Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE
THREE = [delivery("a", 1), delivery("b", 2), delivery("c", 3)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


class TestPromises(ServerSuite):
    secret = "not to be shown"

    @pytest.fixture(autouse=True)
    def _receiver(self, receiver: Receiver) -> None:
        self.receiver = receiver
        receiver.answer = self.answer

    def answer(self, request: Request) -> Reply:
        if request.headers.get("authorization") != "Basic " + base64.b64encode(b"user:hush").decode():
            return Reply(401)
        refused = [d["hash"] for d in request.json["deliveries"] if d["id"].startswith("unfit")]
        said = [
            {"hash": d["hash"], "outcome": "permanent" if d["hash"] in refused else "ok", "why": "on principle"}
            for d in request.json["deliveries"]
        ]
        return Reply(body=json.dumps({"outcomes": said}).encode() if refused else b"")

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.receiver.port

    def destination(self, folder: Path) -> Destination:
        return self.destination_at(folder, *(self.server() if hasattr(self, "receiver") else ("127.0.0.1", 1)))

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Webhook(f"http://user:hush@{host}:{port}/hook", secret=self.secret, batch=7)

    def wrong_credentials(self, folder: Path) -> Destination:
        return Webhook(f"{self.receiver.url.replace('//', '//user:wrong@')}", secret=self.secret)

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence)

    def hashes(self, folder: Path) -> list[str]:
        told = [told for request in self.receiver.requests for told in request.json["deliveries"]]
        return [each["hash"] for each in told if not each["id"].startswith("unfit")]


def opened(receiver: Receiver | str, guarantee: Guarantee = ONCE, **options: Any) -> Webhook:
    hook = Webhook(receiver if isinstance(receiver, str) else receiver.url, **options)
    hook.open(DestinationContext("plays", 2, "notify", 1, guarantee))
    return hook


def kinds(outcomes: list[Outcome]) -> list[tuple[str, bool]]:
    return [(outcome.kind, outcome.universal) for outcome in outcomes]


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_what_is_posted(receiver: Receiver) -> None:
    """A JSON object a chunk: who sends, and each delivery with its parts."""
    child = Delivery(
        "a#1",
        hash="f" * 32,
        sequence=7,
        fields=b'{"title":"One"}',
        raw="é".encode(),
        version="v",
        source="files",
        parent_id="a",
        origin_id="a",
        route=("left",),
    )
    bytes_ = delivery("bytes", 9)
    bytes_.raw = b"\x80\x81"
    assert opened(receiver).write([child, delete("b", 8), bytes_]) == [Outcome.ok()] * 3
    [request] = receiver.requests
    assert request.headers["content-type"] == "application/json"
    told = request.json
    assert {name: told[name] for name in ("plan", "plan_version", "destination")} == {
        "plan": "plays",
        "plan_version": 2,
        "destination": "notify",
    }
    one, gone, raw = told["deliveries"]
    assert one == {
        "hash": "f" * 32,
        "sequence": 7,
        "operation": "upsert",
        "id": "a#1",
        "parent_id": "a",
        "origin_id": "a",
        "source": "files",
        "version": "v",
        "route": ["left"],
        "fields": {"title": "One"},
        "text": "é",
    }
    assert (gone["operation"], gone["id"], gone["fields"], gone["text"]) == ("delete", "b", {}, None)
    assert (raw["text"], raw["raw_base64"]) == (None, "gIE=")


def test_the_key_is_the_delivery_s_hash(receiver: Receiver) -> None:
    """Of a chunk the hash of its hashes; the same again when it is sent again, by another worker too."""
    for _ in range(2):
        opened(receiver).write(THREE[:1])
        opened(receiver).write(THREE)
    keys = [request.headers["idempotency-key"] for request in receiver.requests]
    of_all = blake2b("".join(d.hash for d in THREE).encode(), digest_size=16).hexdigest()
    assert keys == [THREE[0].hash, of_all] * 2
    assert receiver.requests[0].body == receiver.requests[2].body


@pytest.mark.parametrize(
    ("secret", "key"), [("hush", b"hush"), ("whsec_" + base64.b64encode(b"\0key").decode(), b"\0key")]
)
def test_the_signature_is_that_of_standard_webhooks(receiver: Receiver, secret: str, key: bytes) -> None:
    """HMAC-SHA256 over id, time and body; the time is now."""
    opened(receiver, secret=secret).write(THREE)
    [request] = receiver.requests
    at = request.headers["webhook-timestamp"]
    assert abs(int(at) - time.time()) < 60
    assert request.headers["webhook-id"] == request.headers["idempotency-key"]
    signed = f"{request.headers['webhook-id']}.{at}.".encode() + request.body
    expected = base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


def test_without_a_secret_nothing_is_signed(receiver: Receiver) -> None:
    """No header that says it was."""
    opened(receiver).write(THREE)
    assert not [name for name in receiver.requests[0].headers if name.startswith("webhook-")]


def test_secrets_come_from_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the URL, the secret and the headers; they are filled in in the worker, and shown nowhere."""
    monkeypatch.setenv("HOOK_TOKEN", "t0ken\n")
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    hook = opened(
        receiver.url + "/${HOOK_TOKEN}", secret="${HOOK_SECRET}", headers={"Authorization": "Bearer ${HOOK_TOKEN}"}
    )
    receiver.answer = lambda request: Reply(422, f"no such {request.headers['authorization']}".encode())
    [outcome] = hook.write(THREE[:1])
    [request] = receiver.requests
    assert request.path == "/hook/t0ken"
    assert request.headers["authorization"] == "Bearer t0ken"
    assert "webhook-signature" in request.headers
    shown = f"{outcome.why} {hook!r} {hook.target()} {pickle.dumps(hook)!r}"
    assert "t0ken" not in shown
    assert "s3cret" not in shown
    assert "no such …" in outcome.why


@pytest.mark.parametrize(("value", "says"), [(None, "is not set"), (" ", "is not set"), ("a\nb", "holds a line break")])
def test_a_variable_that_is_missing_is_told_by_name(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, value: str | None, says: str
) -> None:
    """Before anything is sent, in driver and worker; it is for a person to mend."""
    monkeypatch.delenv("HOOK_SECRET", raising=False)
    if value is not None:
        monkeypatch.setenv("HOOK_SECRET", value)
    hook = Webhook(receiver.url, secret="${HOOK_SECRET}")
    for call in (hook.check, lambda: opened(receiver, secret="${HOOK_SECRET}")):
        with pytest.raises(PermanentError, match=f"variable HOOK_SECRET {says}") as caught:
            call()
        assert caught.value.universal
    assert receiver.requests == []


def test_a_user_in_the_url_is_sent_as_basic_authentication(receiver: Receiver) -> None:
    """Percent-encoding undone; and it is no part of what is shown."""
    hook = opened(receiver.url.replace("//", "//me:p%40ss@"))
    hook.write(THREE[:1])
    assert receiver.requests[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert hook.target() == receiver.url


def test_a_document_that_is_no_json_is_left_out(receiver: Receiver) -> None:
    """Its outcome says why, the others are sent; of nothing else no request is made."""
    bad = delivery("bad", 1, fields={"title": "\ud800"})
    hook = opened(receiver)
    assert kinds(hook.write([bad])) == [("permanent", False)]
    assert receiver.requests == []
    outcomes = hook.write([bad, delivery("good", 2)])
    assert kinds(outcomes) == [("permanent", False), ("ok", False)]
    assert "bad: field 'title'" in outcomes[0].why
    assert receiver.ids == ["good"]


def test_the_connection_is_kept(receiver: Receiver) -> None:
    """Requests of a task share it; one that the receiver has closed is made anew, and nothing is lost or unknown."""
    hook = opened(receiver)
    for sequence in range(1, 4):
        assert hook.write([delivery("a", sequence)]) == [Outcome.ok()]
    assert len(receiver._connections) == 1
    receiver.stop()
    receiver.start()
    assert hook.write([delivery("a", 4)]) == [Outcome.ok()]


def test_a_rate_is_kept(receiver: Receiver) -> None:
    """Requests a second; one task at a time then, so that it is the rate of all."""
    hook = opened(receiver, rate=50)
    assert hook.single_writer
    assert not Webhook.single_writer
    began = time.monotonic()
    for sequence in range(1, 12):
        hook.write([delivery("a", sequence)])
    assert time.monotonic() - began >= 10 / 50


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


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "ftp://x/hook"}, "the url is no http or https URL"),
        ({"secret": ""}, "the secret is empty"),
        ({"batch": 0}, "batch=0"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": 60}, "timeout_s=60"),
        ({"rate": 0.01}, "rate=0.01"),
        ({"headers": {"Content-Type": "text/plain"}}, "Content-Type is set by Webhook itself"),
    ],
)
def test_arguments_that_cannot_be_meant(options: dict[str, Any], says: str) -> None:
    """Refused when the plan is made, with the reason."""
    with pytest.raises(PlanError, match=says):
        Webhook(**{"url": "http://user:hush@127.0.0.1/hook", **options})


def test_a_url_out_of_a_variable_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told without its value."""
    monkeypatch.setenv("HOOK_URL", "not-a-url-t0ken")
    with pytest.raises(PermanentError, match=r"\$\{HOOK_URL\} is no http or https URL") as caught:
        Webhook("${HOOK_URL}").check()
    assert "t0ken" not in str(caught.value)
    monkeypatch.setenv("HOOK_SECRET", "whsec_no base64!")
    with pytest.raises(PermanentError, match="not base64 behind that"):
        opened("http://127.0.0.1/hook", secret="${HOOK_SECRET}")


# --- through the engine -----------------------------------------------------------------------------------------------


def through(trial: Trial, receiver: Receiver, **policy: Any) -> dict[str, int]:
    """Ten documents to the receiver, until nothing more can be done within some seconds; what ``status`` counts."""
    trial.put(*(f"doc-{i}" for i in range(10)))
    trial.build(out=Webhook(receiver.url), **policy)  # type: ignore[arg-type]
    trial.run(wait=20)
    return trial.counts()


@pytest.mark.rule("webhook.once")
def test_at_most_once_a_broken_connection_leaves_one_unknown(trial: Trial, receiver: Receiver) -> None:
    """The one that was in flight, and it is not sent again; all others arrive once."""
    receiver.answer = lambda request: Reply(how="nothing" if request.ids == ["doc-4"] else "whole")
    assert through(trial, receiver) == {"delivered": 9, "in_doubt": 1}
    assert sorted(receiver.ids) == [f"doc-{i}" for i in range(10)], "sent twice, or not at all"
    [unknown] = trial.docs(status="in_doubt")
    assert unknown["document"] == "doc-4"
    assert "it was sent, but" in unknown["message"]


@pytest.mark.rule("webhook.once")
def test_at_most_once_what_was_not_taken_is_sent_again(trial: Trial, receiver: Receiver) -> None:
    """By the receiver's own word: with the same key, and no attempt is spent."""
    refused: list[str] = []

    def answer(request: Request) -> Reply:
        if request.ids == ["doc-2"] and not refused:
            refused.append("doc-2")
            return Reply(503)
        return Reply()

    receiver.answer = answer
    assert through(trial, receiver, attempts=1) == {"delivered": 10}
    keys = Counter(request.headers["idempotency-key"] for request in receiver.requests)
    assert sorted(keys.values()) == [1] * 9 + [2]


@pytest.mark.rule("webhook.once")
def test_a_receiver_that_is_away(trial: Trial, receiver: Receiver) -> None:
    """Nothing is unknown and nothing is lost: it is all owed until the receiver is back."""
    receiver.stop()
    trial.put("a", "b")
    trial.build(out=Webhook(receiver.url))  # type: ignore[arg-type]
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"pending": 2}
    receiver.start()
    trial.run(wait=20)
    assert trial.counts() == {"delivered": 2}
    assert sorted(receiver.ids) == ["a", "b"]


@pytest.mark.rule("webhook.key")
def test_at_least_once_the_same_key_comes_again(trial: Trial, receiver: Receiver) -> None:
    """After a broken connection and after an error of the receiver's, until it is well."""
    broken: list[str] = []

    def answer(request: Request) -> Reply:
        if request.ids[0] in ("doc-3", "doc-6") and request.ids[0] not in broken:
            broken.append(request.ids[0])
            return Reply(500) if request.ids[0] == "doc-3" else Reply(how="reset")
        return Reply()

    receiver.answer = answer
    assert through(trial, receiver, guarantee="at-least-once") == {"delivered": 10}
    keys = Counter(request.headers["idempotency-key"] for request in receiver.requests)
    assert len(keys) == 10
    assert Counter(receiver.ids) >= Counter(f"doc-{i}" for i in range(10))


def test_one_bad_document_of_a_request(trial: Trial, receiver: Receiver) -> None:
    """Under at-least-once it is found by halving; the others arrive."""
    receiver.answer = lambda request: Reply(422 if "doc-7" in request.ids else 200)
    assert through(trial, receiver, guarantee="at-least-once", batch=10) == {"delivered": 9, "failed": 1}
    [dead] = trial.docs(status="failed")
    assert dead["document"] == "doc-7"
    assert "answered 422 Unprocessable" in dead["message"]
